"""Per-token mass: what attention just gave each resident row, reduced over the query heads of its KV head, added to a token state."""

import triton
import triton.language as tl

from .chain import after_previous, let_next
from .attention import lengths_of
from .write import unit_of


@triton.jit
def add_mass(
    logits_ptr, row_lse_ptr, table_ptr, len_ptr, state_ptr, logits_row, table_row, table_head,
    ENTRIES: tl.constexpr, EP: tl.constexpr, H: tl.constexpr, G: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    RAGGED: tl.constexpr, PER_HEAD: tl.constexpr, OVER_G: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """state [unit, PAGE] += over g of exp2(logits - row_lse); heads are summed in their order, without atomics."""
    after_previous(CHAINED)
    let_next(CHAINED)
    e, lengths = lengths_of(len_ptr, ENTRIES, EP)
    tiles = (lengths + TILE - 1) // TILE
    ends = tl.cumsum(tiles, 0)
    heads: tl.constexpr = 1 if RAGGED else H
    t = tl.arange(0, TILE)
    for item in range(tl.program_id(0), tl.sum(tiles, 0) * heads, tl.num_programs(0)):
        place = item // heads
        entry = tl.sum((ends <= place).to(tl.int32), 0)
        token = (place - tl.sum(tl.where(e < entry, tiles, 0), 0)) * TILE + t
        here = token < tl.sum(tl.where(e == entry, lengths, 0), 0)
        row = entry // H if RAGGED else entry
        h = entry % H if RAGGED else item % heads
        mass = tl.zeros([TILE], tl.float32)
        for g in tl.static_range(G):
            head = row * H * G + h * G + g
            logit = tl.load(logits_ptr + head * logits_row + token, here, -float("inf"))
            share = tl.exp2(logit - tl.load(row_lse_ptr + head))
            mass = tl.maximum(mass, share) if OVER_G == "max" else mass + share
        if OVER_G == "mean":
            mass = mass / G
        page = tl.load(table_ptr + row * table_row + h * table_head + token // PAGE, here, 0)
        at = state_ptr + unit_of(page, h, H, PER_HEAD) * PAGE + token % PAGE
        tl.store(at, tl.load(at, here, 0.0) + mass, here)
