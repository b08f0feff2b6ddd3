"""Keys that were stored before RoPE are turned at their positions: of a prompt, where positions are counted anew inside the cache."""

import triton
import triton.language as tl

from .tools import unit_of


@triton.jit(do_not_specialize=["held"])
def turn_rows(
    k_ptr, row_pos_ptr, table_ptr, freq_ptr, held, scaling, k_layer, pos_layer,
    H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """K of the `held` rows of one request, stored before RoPE, turned at their positions in place. Program (tile, head, layer); one shared table."""
    t, pair = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, HALF)
    h, layer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    here = t < held
    line = unit_of(tl.load(table_ptr + t // PAGE, here, 0), h, H) * PAGE + t % PAGE
    angle = tl.load(row_pos_ptr + layer * pos_layer + line, here, 0).to(tl.float32)[:, None] * tl.load(freq_ptr + pair)[None, :]
    cos, sin = tl.cos(angle) * scaling, tl.sin(angle) * scaling
    at = k_ptr + layer * k_layer + line[:, None] * D + pair[None, :]
    low = tl.load(at, here[:, None], 0.0).to(tl.float32)
    high = tl.load(at + HALF, here[:, None], 0.0).to(tl.float32)
    tl.store(at, (low * cos - high * sin).to(k_ptr.dtype.element_ty), here[:, None])
    tl.store(at + HALF, (high * cos + low * sin).to(k_ptr.dtype.element_ty), here[:, None])
