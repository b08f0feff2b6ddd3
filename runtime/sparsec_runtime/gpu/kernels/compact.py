"""Rows that stay are moved to the front of their pages, in place, in every layer, row and head at once."""

import triton
import triton.language as tl

from .tools import unit_of

# Kernels that run between graphs are not compiled anew where a stride or a pointer into a list of counts is a multiple of 16: a batch would wait for that.


@triton.jit
def line_of(n, inside, table_ptr, h, H: tl.constexpr, PAGE: tl.constexpr):
    """Lines of the rows n, 64 bit; `inside`: which of them there are."""
    return unit_of(tl.load(table_ptr + n // PAGE, inside, 0), h, H) * PAGE + n % PAGE


@triton.jit
def rows_to_move(
    start, kept, data_ptr, table_ptr, source_ptr, h, t, c, H: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """A tile's rows [TILE, PADDED] from where they lie, and which of them move [TILE]."""
    to = start + t
    of = tl.load(source_ptr + to, to < kept, 0)
    moves = of > to
    read = line_of(of, moves, table_ptr, h, H, PAGE)
    inside = moves[:, None] if WIDTH == PADDED else moves[:, None] & (c < WIDTH)[None, :]
    return tl.load(data_ptr + read[:, None] * WIDTH + c[None, :], inside, 0), moves


@triton.jit(do_not_specialize=["kept_ptr", "table_row", "source_layer", "source_place"])
def move_rows(
    a_ptr, b_ptr, table_ptr, source_ptr, kept_ptr, data_layer, table_row, source_layer, source_place,
    H: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Row n of a place becomes what row source[n] was, for n below kept[row]; a and, where programs ask for it, b [layer, unit, PAGE, WIDTH] alike.

    Program (place = row * H + head, layer, array). source [layer, place, n] ascends, so no row lies below its target, and a row that does not move has
    none before it that does. A tile is loaded before the one ahead of it is stored: it reads rows at or behind its own targets, where those are not.
    What a tile stores may be where tiles ahead of it and it itself were loaded from: all threads have done so at the barrier.
    """
    place, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, h = place // H, place % H
    t, c = tl.arange(0, TILE), tl.arange(0, PADDED)
    table_ptr += row * table_row
    source_ptr += layer * source_layer + place * source_place
    data_ptr = tl.where(tl.program_id(2) == 0, a_ptr, b_ptr) + layer * data_layer
    kept = tl.load(kept_ptr + row)
    if tl.load(source_ptr + kept - 1, kept > 0, -1) >= kept:
        ahead, moves = rows_to_move(0, kept, data_ptr, table_ptr, source_ptr, h, t, c, H, PAGE, WIDTH, PADDED)
        for start in range(0, kept, TILE):
            behind, moves_next = rows_to_move(start + TILE, kept, data_ptr, table_ptr, source_ptr, h, t, c, H, PAGE, WIDTH, PADDED)
            tl.debug_barrier()
            write = line_of(start + t, moves, table_ptr, h, H, PAGE)
            inside = moves[:, None] if WIDTH == PADDED else moves[:, None] & (c < WIDTH)[None, :]
            tl.store(data_ptr + write[:, None] * WIDTH + c[None, :], ahead, inside)
            ahead, moves = behind, moves_next
