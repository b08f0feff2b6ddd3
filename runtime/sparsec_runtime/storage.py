"""The pools of one engine for one method: streams, zone stores, positions, token and page states, summaries.

One zone: K, V and row data share one stream, hence one table. Several zones: each zone has a stream (each part has, where K and V move
apart) and row data has its own. Knows no step and no hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import torch

from .layout import DEFAULT_PAGE_SIZE, PARTS, Layout, Part, StateLayout, SummaryLayout, ZoneLayout
from .rope import Rope
from .sequence import Sequence
from .states import dtype_of, extents
from .zones import Addresses, Geometry, PackedStore, PagedArray, RawStore, Store, Stream

ROWS = "rows"


class Storage:
    """`tokens`: rows per layer and head that a stream can hold: one number for all streams, or one for each by its name."""

    def __init__(
        self, layout: Layout, facts: Mapping[str, float | int], rope: Rope, dtype: torch.dtype, device: torch.device,
        tokens: int | Mapping[str, int],
    ) -> None:  # fmt: skip
        self.layout, self.rope, self.dtype, self.device = layout, rope, dtype, device
        self.layers, self.heads, self.head_dim = int(facts["n_layers"]), int(facts["kv_heads"]), int(facts["head_dim"])
        self._tokens = tokens
        self.zone_names = tuple(zone.name for zone in reversed(layout.zones))  # oldest rows first: moves go to later zones
        self.newest_zone = layout.zones[0].name
        self.ragged_heads = layout.scope == "head"
        self.streams: dict[str, Stream] = {}
        self.stores: dict[tuple[str, Part], Store] = {}
        self.row_stream = self._lay_out_zones()
        self.positions = self._row_array((), torch.int32) if layout.evicts else None
        self.token_states = {state.name: (state, self._token_state(state)) for state in layout.token_states}
        self.page_states = {state.name: (state, self._page_array(state, facts)) for state in layout.page_states}
        self.summaries = {summary.name: (summary, self._page_array(summary, facts)) for summary in layout.summaries}
        self.shared_states = {state.name: state for state in layout.states if state.shared}
        self.joins_layers = bool(self.shared_states) or any("l" in state.letters for state in layout.plain_states)
        self._facts = facts
        assert not (self.summaries or self.page_states) or len(layout.zones) == 1, "pages are counted in a method's only zone"

    @property
    def page_size(self) -> int:
        """Rows per page of row data and of summaries."""
        return self.row_stream.geometry.page_size

    def extent(self, letter: str, layout: StateLayout) -> int:
        """Size of an index letter other than t, p and i."""
        return extents((letter,), layout.sizes, self._facts)[0]

    def stream_of(self, zone: str, part: Part) -> Stream:
        return self.stores[zone, part].stream

    def addresses(self, sequences: list[Sequence]) -> dict[str, Addresses]:
        """The tables of a batch, by stream."""
        return {name: Addresses.of_tables(stream, [sequence.tables[name] for sequence in sequences]) for name, stream in self.streams.items()}

    def with_layers_as_rows(self) -> Storage:
        """The same memory as the pools of one layer (fold.py)."""
        made = copy(self)
        made.stores = {key: store.with_layers_as_rows() for key, store in self.stores.items()}
        made.positions = None if self.positions is None else self.positions.with_layers_as_rows()
        made.token_states, made.page_states, made.summaries = (
            {name: (layout, array.with_layers_as_rows()) for name, (layout, array) in arrays.items()}
            for arrays in (self.token_states, self.page_states, self.summaries)
        )
        return made

    def _lay_out_zones(self) -> Stream:
        layout = self.layout
        if len(layout.zones) == 1:
            only = layout.zones[0]
            stream = self._stream(only.name, layout.page_size_of(only))
            for part in PARTS:
                self._store(only, part, stream)
            return stream
        for zone in layout.zones:
            whole = None if layout.split else self._stream(zone.name, layout.page_size_of(zone))
            for part in PARTS:
                self._store(zone, part, whole or self._stream(f"{zone.name}.{part}", layout.page_size_of(zone)))
        return self._stream(ROWS, layout.page_size or DEFAULT_PAGE_SIZE)

    def _stream(self, name: str, page_size: int) -> Stream:
        tokens = self._tokens if isinstance(self._tokens, int) else self._tokens[name]
        geometry = Geometry(self.layout.scope, self.layers, self.heads, page_size, tokens, self.device)
        self.streams[name] = Stream(name, geometry)
        return self.streams[name]

    def _store(self, zone: ZoneLayout, part: Part, stream: Stream) -> None:
        codec = zone.codecs.get(part)
        if codec is None:
            self.stores[zone.name, part] = RawStore(stream, self.head_dim, self.dtype)
        else:
            self.stores[zone.name, part] = PackedStore(stream, codec, self.head_dim, self.dtype)

    def _row_array(self, inner: tuple[int, ...], dtype: torch.dtype) -> PagedArray:
        return self.row_stream.array(self.page_size, inner, dtype, payload=False)

    def _token_state(self, state: StateLayout) -> PagedArray:
        assert set(state.letters) <= {"t", "h"}, f"state '{state.name}': a token state has letters t and h, not {state.letters}"
        return self._row_array((), dtype_of(state.dtype, self.dtype))

    def _page_array(self, layout: StateLayout | SummaryLayout, facts: Mapping[str, float | int]) -> PagedArray:
        declared = layout.sizes if isinstance(layout, StateLayout) else {}
        inner = extents(tuple(letter for letter in layout.letters if letter not in "ph"), declared, facts)
        return self.row_stream.array(1, inner, dtype_of(layout.dtype, self.dtype), payload=False)
