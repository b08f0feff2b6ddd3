"""The rows of a prompt chunk enter the pools: RoPE of q and k, and K and V into their slots, in one launch."""

import triton
import triton.language as tl


@triton.jit
def lines_of(t, here, first_ptr, units_ptr, h, units_head, PAGE: tl.constexpr):
    """Lines [TILE] of a head's pool where the chunk's rows t go, 64 bit: behind the first[h] that it holds."""
    row = tl.load(first_ptr + h) + t
    return tl.load(units_ptr + h * units_head + row // PAGE, here, 0) * PAGE + row % PAGE


@triton.jit
def turn_and_store(x_ptr, to_ptr, cos_ptr, sin_ptr, here, pair, HALF: tl.constexpr, EVEN: tl.constexpr):
    """Vectors at x [TILE, 1] turned by angles [TILE, 1] (half-split pairs), in fp32 with one rounding as decode steps do it, to `to` [TILE, 1]."""
    inside = here[:, None] if EVEN else here[:, None] & (pair < HALF)[None, :]
    low = tl.load(x_ptr + pair[None, :], inside, 0.0).to(tl.float32)
    high = tl.load(x_ptr + HALF + pair[None, :], inside, 0.0).to(tl.float32)
    cos = tl.load(cos_ptr + pair[None, :], inside, 0.0)
    sin = tl.load(sin_ptr + pair[None, :], inside, 0.0)
    kind = to_ptr.dtype.element_ty
    tl.store(to_ptr + pair[None, :], (low * cos - high * sin).to(kind), inside)
    tl.store(to_ptr + HALF + pair[None, :], (high * cos + low * sin).to(kind), inside)


@triton.jit(do_not_specialize=["k_units_ptr", "v_units_ptr", "tokens", "k_units_head", "v_units_head"])
def write_chunk(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, out_ptr, keys_ptr, values_ptr, k_units_ptr, v_units_ptr, k_first_ptr, v_first_ptr,
    tokens, q_token, k_token, v_token, angle_token, k_units_head, v_units_head,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """q [token, HQ, D] turned -> out; k turned -> keys, v -> values [unit, PAGE, D]. Channels from 2 * HALF on do not turn. Program (tile of tokens, head)."""
    t, head = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1)
    here, at = t < tokens, t.to(tl.int64)[:, None]
    c, pair = tl.arange(0, DP), tl.arange(0, HALF_PADDED)
    cos_ptr += at * angle_token
    sin_ptr += at * angle_token
    if head < HQ:
        x_ptr, to_ptr = q_ptr + at * q_token + head * D, out_ptr + (at * HQ + head) * D
    elif head < HQ + H:
        h = head - HQ
        x_ptr = k_ptr + at * k_token + h * D
        to_ptr = keys_ptr + lines_of(t, here, k_first_ptr, k_units_ptr, h, k_units_head, PAGE)[:, None] * D
    else:
        h = head - HQ - H
        x_ptr = v_ptr + at * v_token + h * D
        to_ptr = values_ptr + lines_of(t, here, v_first_ptr, v_units_ptr, h, v_units_head, PAGE)[:, None] * D
    if head < HQ + H:
        turn_and_store(x_ptr, to_ptr, cos_ptr, sin_ptr, here, pair, HALF, HALF == HALF_PADDED)
        if 2 * HALF < D:
            rest = here[:, None] & ((c >= 2 * HALF) & (c < D))[None, :]
            tl.store(to_ptr + c[None, :], tl.load(x_ptr + c[None, :], rest, 0.0), rest)
    else:
        inside = here[:, None] & (c < D)[None, :]
        tl.store(to_ptr + c[None, :], tl.load(x_ptr + c[None, :], inside, 0.0), inside)
