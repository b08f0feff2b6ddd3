"""The new rows of a step enter the pools: QK norm, RoPE, K and V, positions, initial states and page bounds, in one launch.

Where a method counts positions anew inside the cache and keeps some first rows and the newest ones, keys are stored turned at their logical position
all the same: the newest rows lie in one run, so a query at its logical position sees them at the right distances, and only the first rows, whose
rank is their position, need the query turned at its rank (q_first). Keys of the prompt, stored unturned, are turned once (turn_rows).

A unit is one page of one head; `table` names a page by (row, head, index). With PER_HEAD tables a page is a unit, else a unit is page * H + h.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next

@triton.jit
def unit_of(page, h, H: tl.constexpr, PER_HEAD: tl.constexpr):
    """Unit number of a page of head h, 64 bit: pools exceed 2^31 elements."""
    page = page.to(tl.int64)
    return page if PER_HEAD else page * H + h


@triton.jit
def rotated(x_ptr, weight_ptr, cos_ptr, sin_ptr, c, half, D: tl.constexpr, eps, NORM: tl.constexpr):
    """One head's vector after its norm and after RoPE (half-split pairs), fp32 [D padded]."""
    x = tl.load(x_ptr + c, c < D, 0.0).to(tl.float32)
    turning = c < 2 * half
    partner = tl.where(c < half, c + half, c - half)
    other = tl.load(x_ptr + partner, turning, 0.0).to(tl.float32)
    if NORM:
        kind = x_ptr.dtype.element_ty
        shrink = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
        x = ((x * shrink).to(kind).to(tl.float32) * tl.load(weight_ptr + c, c < D, 0.0).to(tl.float32)).to(kind).to(tl.float32)
        other = ((other * shrink).to(kind).to(tl.float32) * tl.load(weight_ptr + partner, turning, 0.0).to(tl.float32)).to(kind).to(tl.float32)
    pair = tl.where(c < half, c, c - half)
    cos = tl.load(cos_ptr + pair, turning, 1.0)
    sin = tl.load(sin_ptr + pair, turning, 0.0)
    return x * cos + tl.where(c < half, -other, other) * sin


@triton.jit
def write_rows(
    qkv_ptr, q_ptr, q_first_ptr, k_ptr, v_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, rank_cos_ptr, rank_sin_ptr, table_ptr, len_ptr, pos_ptr,
    row_pos_ptr, state_ptr, low_ptr, high_ptr, state_initial, half, eps, table_row, table_head, len_row, len_head,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, PER_HEAD: tl.constexpr,
    NORM: tl.constexpr, FIRSTS: tl.constexpr, POSITIONS: tl.constexpr, STATE: tl.constexpr, BOUNDS: tl.constexpr, CHAINED: tl.constexpr = False,
):
    """Program (row, head of q, k or v). len counts the new row, so its rank is len - 1; a row of len 0 is padding of the batch.

    qkv [row, (HQ + 2H) * D]; q [row, HQ, D]; k, v [unit, PAGE, D]; row_pos, state [unit, PAGE]; low, high [unit, D]: least and greatest K of a page.
    """
    after_previous(CHAINED)
    let_next(CHAINED)
    row, head = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, DP)
    x_ptr = qkv_ptr + (row * (HQ + 2 * H) + head) * D
    if head < HQ:
        q = rotated(x_ptr, q_weight_ptr, cos_ptr + row * half, sin_ptr + row * half, c, half, D, eps, NORM)
        tl.store(q_ptr + (row * HQ + head) * D + c, q.to(q_ptr.dtype.element_ty), c < D)
        if FIRSTS:
            q = rotated(x_ptr, q_weight_ptr, rank_cos_ptr + row * half, rank_sin_ptr + row * half, c, half, D, eps, NORM)
            tl.store(q_first_ptr + (row * HQ + head) * D + c, q.to(q_ptr.dtype.element_ty), c < D)
    else:
        h = (head - HQ) % H
        rank = tl.load(len_ptr + row * len_row + h * len_head) - 1
        real = rank >= 0
        page = tl.load(table_ptr + row * table_row + h * table_head + rank // PAGE, real, 0)
        unit = unit_of(page, h, H, PER_HEAD)
        slot = rank % PAGE
        line = (unit * PAGE + slot) * D + c
        inside = c < tl.where(real, D, 0)
        if head < HQ + H:
            k = rotated(x_ptr, k_weight_ptr, cos_ptr + row * half, sin_ptr + row * half, c, half, D, eps, NORM).to(k_ptr.dtype.element_ty)
            tl.store(k_ptr + line, k, inside)
            if BOUNDS:  # of the whole page anew, so that a step that is undone leaves nothing behind
                older = tl.arange(0, PAGE)[:, None]
                mask = (older < slot) & inside[None, :]
                held = tl.load(k_ptr + (unit * PAGE + older) * D + c[None, :], mask, 0.0).to(tl.float32)
                low = tl.minimum(tl.min(tl.where(mask, held, float("inf")), 0), k.to(tl.float32))
                high = tl.maximum(tl.max(tl.where(mask, held, -float("inf")), 0), k.to(tl.float32))
                tl.store(low_ptr + unit * D + c, low.to(low_ptr.dtype.element_ty), inside)
                tl.store(high_ptr + unit * D + c, high.to(high_ptr.dtype.element_ty), inside)
            if POSITIONS:
                tl.store(row_pos_ptr + unit * PAGE + slot, tl.load(pos_ptr + row).to(tl.int32), real)
            if STATE:
                tl.store(state_ptr + unit * PAGE + slot, state_initial, real)
        else:
            tl.store(v_ptr + line, tl.load(x_ptr + c, c < D, 0.0).to(v_ptr.dtype.element_ty), inside)


@triton.jit
def turn_rows(
    k_ptr, row_pos_ptr, table_ptr, freq_ptr, held, scaling, k_layer, pos_layer,
    H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """K of the `held` rows of one request, stored before RoPE, turned at their positions in place. Program (tile, head, layer); one shared table."""
    t, pair = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, HALF)
    h, layer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    here = t < held
    line = unit_of(tl.load(table_ptr + t // PAGE, here, 0), h, H, False) * PAGE + t % PAGE
    angle = tl.load(row_pos_ptr + layer * pos_layer + line, here, 0).to(tl.float32)[:, None] * tl.load(freq_ptr + pair)[None, :]
    cos, sin = tl.cos(angle) * scaling, tl.sin(angle) * scaling
    at = k_ptr + layer * k_layer + line[:, None] * D + pair[None, :]
    low = tl.load(at, here[:, None], 0.0).to(tl.float32)
    high = tl.load(at + HALF, here[:, None], 0.0).to(tl.float32)
    tl.store(at, (low * cos - high * sin).to(k_ptr.dtype.element_ty), here[:, None])
    tl.store(at + HALF, (high * cos + low * sin).to(k_ptr.dtype.element_ty), here[:, None])
