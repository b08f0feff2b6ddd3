"""Device functions of generated attention that counts positions anew: K lies un-rotated, and RoPE (half-split pairs) turns it as it is read.

Rows lie in order, so the row in slot r of a (row, head) has rank r. With R(n) the rotation by n positions, a tile of rows from r0 on is asked so:
(R(m) q) . (R(r0 + i) k) = (R(m - r0) q) . (R(i) k). Keys are turned by angles of i alone, the same ones for every tile; q by one angle a tile.
Part of the ABI of generated code.
"""

import triton
import triton.language as tl


@triton.jit
def channels_of(n, HALF: tl.constexpr, D: tl.constexpr):
    """Of the two channels of pairs n [1, pair], n < D / 2: the lower, and how far apart they are. Pairs from HALF on do not turn (RoPE of 2 * HALF channels): they are any two of the channels behind."""
    if 2 * HALF == D:
        return n, HALF
    else:
        # So many channels in a row are neighbours, at least, which lets a load take them at once.
        RUN: tl.constexpr = (HALF | (D // 2)) & -(HALF | (D // 2))
        low = tl.where(n < HALF, n, n + HALF)
        return tl.multiple_of(tl.max_contiguous(low, [1, RUN]), [1, RUN]), tl.where(n < HALF, HALF, D // 2 - HALF)


@triton.jit
def angles_at(turn_ptr, rank, n, HALF: tl.constexpr, kind: tl.constexpr):
    """cos and sin of pairs n at a rank, in the type `kind`, from turn [rank, cos or sin, HALF] fp32; 1 and 0 of pairs that do not turn."""
    at = turn_ptr + rank * (2 * HALF) + n
    return tl.load(at, n < HALF, 1.0).to(kind), tl.load(at + HALF, n < HALF, 0.0).to(kind)


@triton.jit
def turned(low, high, cos, sin):
    """Both channels of pairs turned, in fp32 or in the type of all four."""
    return low * cos - high * sin, high * cos + low * sin
