"""Evictions between two steps, every layer, row and head at once, in place: which rows stay (compact.py moves them), or the one row that
goes and the newest in its slot."""

import triton
import triton.language as tl

from .rank import ALWAYS, best_and_place, entries_of, hand_on, keys_of, ordered
from .tools import unit_of


@triton.jit(do_not_specialize=["held_ptr", "kept_ptr", "first_ptr", "newest_ptr", "table_row", "best"])
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


@triton.jit(do_not_specialize=["held_ptr", "kept_ptr", "first_ptr", "source_layer", "source_place"])
def rows_at_the_ends(held_ptr, kept_ptr, first_ptr, source_ptr, source_layer, source_place, H: tl.constexpr, TILE: tl.constexpr):
    """source [layer, place, n] where the first and the newest rows stay and no others. Program (place, layer, tile)."""
    place, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = place // H
    n = tl.program_id(2) * TILE + tl.arange(0, TILE)
    kept = tl.load(kept_ptr + row)
    gone = tl.load(held_ptr + row) - kept
    of = tl.where(n < tl.load(first_ptr + row), n, n + gone)
    tl.store(source_ptr + layer * source_layer + place * source_place + n, of, n < kept)


@triton.jit(do_not_specialize=["worth_layer", "worth_row", "table_row"])
def replace_victims(
    worth_ptr, k_ptr, v_ptr, pos_ptr, state_ptr, table_ptr, number_ptr, worth_layer, worth_row, kv_layer, row_layer, table_row,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, WORTH: tl.constexpr, STATE: tl.constexpr,
):  # fmt: skip
    """The last of the held rows of a place becomes what the one row that goes was. Program (place = row * H + head, layer).

    number [6, row]: rows held, 0 where none goes; first; settled and from_slot; from_pos; victim. Rows in the slots below `first`, in those from `from_slot`
    up to `settled`, and at positions of at least from_pos stay. Of the others the least worth goes; of equals, as if ranked in order, the newest.
    WORTH: "state": a token state [layer, unit, PAGE]; "asked": [layer, row, slot], alike for all heads; "known": the host names the victim's slot.
    k, v [layer, unit, PAGE, D]; pos and, where STATE, state [layer, unit, PAGE].
    """
    place, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, h, rows = place // H, place % H, tl.num_programs(0) // H
    number_ptr += row
    table_ptr += row * table_row
    pos_ptr += layer * row_layer
    held = tl.load(number_ptr)
    if held > 0:
        if WORTH == "known":
            victim = tl.load(number_ptr + 5 * rows)
        else:
            first, settled, from_slot = (tl.load(number_ptr + rows), tl.load(number_ptr + 2 * rows), tl.load(number_ptr + 3 * rows))
            from_pos = tl.load(number_ptr + 4 * rows)
            n = tl.arange(0, BLOCK)
            least, found = tl.full([BLOCK], 0x7FFFFFFFFFFFFFFF, tl.int64), n
            for start in range(0, held, BLOCK):
                t = start + n
                here = t < held
                line = unit_of(tl.load(table_ptr + t // PAGE, here, 0), h, H) * PAGE + t % PAGE
                pos = tl.load(pos_ptr + line, here, 0)
                if WORTH == "asked":
                    worth = tl.load(worth_ptr + layer * worth_layer + row * worth_row + t, here, 0.0)
                else:
                    worth = tl.load(worth_ptr + layer * row_layer + line, here, 0.0)
                stays = (t < first) | ((t >= from_slot) & (t < settled)) | (pos >= from_pos)
                key = tl.where(stays, ALWAYS, ordered(worth)).to(tl.int64)
                key = (key << 31) + (0x7FFFFFFF - pos)  # of equals the newest has the least
                less = here & (key < least)
                least, found = tl.where(less, key, least), tl.where(less, t, found)
            victim = tl.min(tl.where(least == tl.min(least, 0), found, held), 0)
        last = held - 1
        if victim != last:
            read = unit_of(tl.load(table_ptr + last // PAGE), h, H) * PAGE + last % PAGE
            write = unit_of(tl.load(table_ptr + victim // PAGE), h, H) * PAGE + victim % PAGE
            c = tl.arange(0, DP)
            k_at, v_at = k_ptr + layer * kv_layer + c, v_ptr + layer * kv_layer + c
            tl.store(k_at + write * D, tl.load(k_at + read * D, c < D), c < D)
            tl.store(v_at + write * D, tl.load(v_at + read * D, c < D), c < D)
            tl.store(pos_ptr + write, tl.load(pos_ptr + read))
            if STATE:
                tl.store(state_ptr + layer * row_layer + write, tl.load(state_ptr + layer * row_layer + read))
