"""The new rows of a step enter the pools: QK norm, RoPE, K and V, positions, initial states and page bounds, in one launch.

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
def rotated(x_ptr, weight_ptr, cos_ptr, sin_ptr, c, half, D: tl.constexpr, eps, NORM: tl.constexpr, TURN: tl.constexpr):
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
    if TURN:
        pair = tl.where(c < half, c, c - half)
        cos = tl.load(cos_ptr + pair, turning, 1.0)
        sin = tl.load(sin_ptr + pair, turning, 0.0)
        x = x * cos + tl.where(c < half, -other, other) * sin
    return x


@triton.jit
def write_rows(
    qkv_ptr, q_ptr, k_ptr, v_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, table_ptr, len_ptr, pos_ptr,
    row_pos_ptr, state_ptr, low_ptr, high_ptr, state_initial, half, eps, table_row, table_head, len_row, len_head,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, PER_HEAD: tl.constexpr,
    NORM: tl.constexpr, TURN: tl.constexpr, POSITIONS: tl.constexpr, STATE: tl.constexpr, BOUNDS: tl.constexpr, CHAINED: tl.constexpr = False,
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
        q = rotated(x_ptr, q_weight_ptr, cos_ptr + row * half, sin_ptr + row * half, c, half, D, eps, NORM, TURN)
        tl.store(q_ptr + (row * HQ + head) * D + c, q.to(q_ptr.dtype.element_ty), c < D)
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
            k = rotated(x_ptr, k_weight_ptr, cos_ptr + row * half, sin_ptr + row * half, c, half, D, eps, NORM, TURN).to(k_ptr.dtype.element_ty)
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
