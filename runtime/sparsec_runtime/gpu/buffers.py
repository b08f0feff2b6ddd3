"""The tensors of one batch bucket that a captured graph reads and writes: their addresses never change.

`counts` is one tensor, so that a step sends everything the host knows in one copy: `header` [number, batch row] with the logical positions and what a
choice of pages or tokens needs (FIRST_CHOSEN and NEWEST_CHOSEN: of either, taken before all others), then `held` [1 or layer, batch row or (batch row, head)].
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..decode_plan import DecodePlan
from ..models.shape import ModelShape
from ..rope import Rope
from ..storage import Storage
from ..tables import table_rows
from .blocks import aligned, pow2
from .sampling import GREEDY_PART, SampleBuffers
from .tuning import Tuning

POSITION, CHOSEN_TOKENS, CHOSEN_PAGES, FIRST_CHOSEN, NEWEST_CHOSEN, FIRST_ROWS, K_PACKED, V_PACKED, K_TAIL, V_TAIL, HEADER = range(11)


class Scratch:
    """Tensors that no bucket expects to find as it left them: all share the largest of a name that was asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._largest: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        size = math.prod(shape)
        if name not in self._largest or self._largest[name].numel() < size:
            self._largest[name] = torch.empty(size, dtype=dtype, device=self.device)
        return self._largest[name][:size].view(shape)


def turns(rope: Rope, ranks: int) -> Tensor:
    """cos and sin [rank, cos or sin, channel / 2] fp32 of the first ranks, without the factor of scaled embeddings."""
    angles = torch.arange(ranks, device=rope.inv_freq.device)[:, None].float() * rope.inv_freq
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def page_tables(rows: int, tokens: int, storage: Storage) -> dict[str, Tensor]:
    """Page tables on the device, by stream: [batch row, table_row, index] int32 of requests that hold up to `tokens` rows in a layer."""
    pages = {store.stream.name: store.stream.geometry.page_size for store in storage.stores.values()}
    lines = table_rows(storage.layout.scope, storage.layers, storage.heads)
    return {name: torch.zeros((rows, lines, -(-tokens // page)), dtype=torch.int32, device=storage.device) for name, page in pages.items()}


class DecodeBuffers:
    """rows: of the bucket; tokens: rows that one request can hold in a layer; choice: tokens that a choice of pages or tokens can read.

    tables: page tables of at least as many rows, of which the first are the bucket's.
    """

    def __init__(
        self, rows: int, tokens: int, choice: int, tables: Mapping[str, Tensor], storage: Storage, shape: ModelShape, plan: DecodePlan,
        tuning: Tuning, pool_tokens: int, scratch: Scratch,
    ) -> None:  # fmt: skip
        device, dtype = storage.device, storage.dtype
        self.rows, self.choice = rows, choice
        scope = storage.layout.scope
        self.pages = -(-tokens // storage.page_size)
        self._entries = rows * (storage.heads if scope == "head" else 1)
        lines = 1 if scope == "shared" else storage.layers
        self.counts = torch.zeros(HEADER * rows + lines * self._entries, dtype=torch.int32, device=device)
        self.header = self.counts[: HEADER * rows].view(HEADER, rows)
        self.held = self.counts[HEADER * rows :].view(lines, self._entries)
        self.tables = {name: table[:rows] for name, table in tables.items()}
        self.table = self.tables[storage.stream_of(storage.newest_zone, "K").name]
        self.ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.x = torch.empty((rows, shape.hidden), dtype=dtype, device=device)
        self.normed = torch.empty_like(self.x)
        asked = 2 if plan.asks_firsts(storage.layout.position) else 1  # a query of the first rows' own lies behind the others
        self.q = torch.empty((asked, rows, shape.q_heads, shape.head_dim), dtype=dtype, device=device)[0]
        self.attended = torch.empty_like(self.q)
        self.active = torch.empty((rows, shape.intermediate), dtype=dtype, device=device)
        half = storage.rope.dim // 2
        self.cos = torch.empty((2, rows, half), dtype=torch.float32, device=device)
        self.sin = torch.empty_like(self.cos)
        if plan.turns_keys:
            self.turn = turns(storage.rope, tuning.weighing.tile + 1)
        self.sampling: SampleBuffers | None = None  # made when a row is first not greedy
        self.vocab_part = min(GREEDY_PART, pow2(shape.vocab))
        parts = -(-shape.vocab // self.vocab_part)
        self.best = torch.empty((rows, parts), dtype=torch.float32, device=device)
        self.best_id = torch.empty((rows, parts), dtype=torch.int32, device=device)
        sizes = (tuning.among(size, rows * storage.heads) for size in (tuning.whole, tuning.ragged, tuning.weighing))
        items = self._items(tokens, min(size.chunk for size in sizes), pool_tokens, storage)
        if plan.moves is not None:
            zones = tuning.zones
            items = self._items(tokens, min(zones.chunk, 2 * zones.rest), pool_tokens, storage) + self._items(tokens, zones.chunk, pool_tokens, storage)
        if plan.pages is not None or plan.tokens is not None:
            items = max(items, rows * storage.heads * (17 + choice // (tuning.picked.chunk // 2)))
        if plan.tokens is not None:
            self.listed = torch.zeros((rows, choice), dtype=torch.int32, device=device)
        if plan.pages is not None:
            _, tile = tuning.bound_pages(storage.heads, dtype)
            self.worth = scratch.take("worth", (rows, storage.heads, aligned(self.pages)))
            self.best_worth = scratch.take("best_worth", (rows, storage.heads, aligned(-(-self.pages // tile))))
            self.chosen = torch.zeros((rows, storage.heads, -(-choice // storage.page_size)), dtype=torch.int32, device=device)
        self.part = scratch.take("part", (items, shape.group, shape.head_dim))
        self.part_lse = scratch.take("part_lse", (items, shape.group))
        self.row_lse = torch.empty((rows, shape.q_heads), dtype=torch.float32, device=device)
        asks = plan.keep is not None and plan.keep.asked is not None
        if plan.mass is not None or plan.tokens is not None or asks:
            self.logits = scratch.take("logits", (rows, shape.q_heads, self.pages * storage.page_size))
        if asks:  # what the newest query gives each row of each layer
            self.asked = scratch.take("asked", (storage.layers, rows, self.pages * storage.page_size))

    def _items(self, tokens: int, chunk: int, pool_tokens: int, storage: Storage) -> int:
        """Work items of attention at most (kernels/tools.py, chunk_sizes): 16 of a short row, half chunks of the others; the pool bounds all rows."""
        each = self.rows * storage.heads * (17 + tokens // (chunk // 2))
        if storage.ragged_heads:
            return each
        held = pool_tokens * (1 if storage.layout.scope == "shared" else storage.layers)
        return min(each, (held // (chunk // 2) + 17 * self.rows) * storage.heads)

    def held_of(self, layer: int) -> Tensor:
        """Rows held [batch row or (batch row, head)] in a layer, the new one counted."""
        return self.held[layer if self.held.shape[0] > 1 else 0]
