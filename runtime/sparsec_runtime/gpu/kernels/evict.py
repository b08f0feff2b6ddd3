"""Bulk eviction between two steps, every layer, row and head at once: which rows stay (compact.py moves them)."""

import triton
import triton.language as tl

from .rank import best_and_place, entries_of, hand_on, keys_of
from .tools import unit_of


@triton.jit
def rows_that_stay(
    state_ptr, table_ptr, held_ptr, kept_ptr, first_ptr, newest_ptr, key_ptr, listed_ptr, state_layer, table_row, best,
    H: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, IN_PARTS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """listed [layer, place, best]: the kept[row] rows that stay, ascending: the first, the newest, and of the others those of the largest state, ties to the older.

    Program (place = row * H + head, layer, part of BLOCK rows); tables are shared by layers and heads; state [layer, unit, PAGE].
    IN_PARTS: key, listed [layer, place, part, best] are what the part hands on to the ranking of all (kernels/rank.py); else one block holds all rows.
    """
    place, layer, part = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    row, h = place // H, place % H
    t = part * BLOCK + entries_of(BLOCK)
    held = tl.load(held_ptr + row)
    page = tl.load(table_ptr + row * table_row + t // PAGE, t < held, 0)
    state = tl.load(state_ptr + layer * state_layer + unit_of(page, h, H) * PAGE + t % PAGE, t < held, 0.0)
    key = keys_of(state, t, held, tl.load(first_ptr + row), tl.load(newest_ptr + row))
    at = ((layer * tl.num_programs(0) + place) * tl.num_programs(2) + part) * best
    if IN_PARTS:
        hand_on(key, t, tl.load(kept_ptr + row), key_ptr + at, listed_ptr + at, best, PADDED)
    else:
        taken, to = best_and_place(key, tl.load(kept_ptr + row))
        tl.store(listed_ptr + at + to, t, taken)


@triton.jit
def rows_at_the_ends(held_ptr, kept_ptr, first_ptr, source_ptr, source_layer, source_place, H: tl.constexpr, TILE: tl.constexpr):
    """source [layer, place, n] where the first and the newest rows stay and no others. Program (place, layer, tile)."""
    place, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = place // H
    n = tl.program_id(2) * TILE + tl.arange(0, TILE)
    kept = tl.load(kept_ptr + row)
    gone = tl.load(held_ptr + row) - kept
    of = tl.where(n < tl.load(first_ptr + row), n, n + gone)
    tl.store(source_ptr + layer * source_layer + place * source_place + n, of, n < kept)
