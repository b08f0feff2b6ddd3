"""Rows that stay move to the front of their pages, in place, every layer, row and head at once."""

import triton
import triton.language as tl


@triton.jit
def move_rows(
    data_ptr, units_ptr, source_ptr, kept_ptr, data_layer, units_layer, units_place, source_layer, source_place, kept_layer,
    PAGE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Row n of a place becomes what row source[n] was; program (place = row * H + head, layer).

    data [layer, unit, PAGE, WIDTH]; units [layer, place, page]; source [layer, place, n] ascending, so never below n; kept [layer, place].
    A tile's sources lie at or behind the tile: all its loads are done before its stores, and later tiles read what none has written.
    """
    place, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    t, c = tl.arange(0, TILE), tl.arange(0, PADDED)
    units_ptr += layer * units_layer + place * units_place
    source_ptr += layer * source_layer + place * source_place
    data_ptr += layer * data_layer
    kept = tl.load(kept_ptr + layer * kept_layer + place)
    for start in range(0, kept, TILE):
        to = start + t
        here = to < kept
        of = tl.load(source_ptr + to, here, 0).to(tl.int32)
        if tl.max(tl.where(here, of - to, 0), 0) > 0:
            read = tl.load(units_ptr + of // PAGE, here, 0).to(tl.int64) * PAGE + of % PAGE
            write = tl.load(units_ptr + to // PAGE, here, 0).to(tl.int64) * PAGE + to % PAGE
            inside = here[:, None] & (c < WIDTH)[None, :]
            moved = tl.load(data_ptr + read[:, None] * WIDTH + c[None, :], inside, 0)
            tl.debug_barrier()
            tl.store(data_ptr + write[:, None] * WIDTH + c[None, :], moved, inside)
