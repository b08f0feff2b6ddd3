"""One request as the cache sees it: its tables, counts and plain states between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .layout import Counts, Part
from .params import Value
from .tables import PageTable


class Scattered(NamedTuple):
    """Rows of logical positions from `since` on lie in any slot; all older ones lie, as far as they are held, in the slots below `settled`, in order."""

    settled: int
    since: int


@dataclass(slots=True, eq=False)
class Sequence:
    """`length` logical tokens computed; `rows` [layer, kv_head] held; `zone_rows[zone, part]` [layer, kv_head] of them in each zone.

    Slot n of a zone holds its n-th oldest row, unless kernels have `scattered` the rows: then only kernels read them.
    """

    request_id: str
    params: Mapping[str, Value]
    rows: np.ndarray
    zone_rows: dict[tuple[str, Part], np.ndarray]
    tables: dict[str, PageTable]
    ring: Tensor | None = None  # [layer, slot, q_head, channel]: the query of position p is in slot p % ring
    states: dict[str, Tensor] = field(default_factory=dict)
    length: int = 0
    prompt_rows: np.ndarray | None = None
    peak_bytes: int = 0
    scattered: Scattered | None = None
    turned: bool = False  # K, stored before RoPE, was turned at its positions by kernels; torch does not read it then

    def ring_at(self, layer: int | slice, positions: Tensor) -> Tensor:
        """Queries [query, q_head, channel], of several layers [layer, query, q_head, channel]; a position below 0, or older than the ring reaches back, gives any query."""
        assert self.ring is not None, "the method's layout keeps no queries (ring)"
        return self.ring[layer, positions % self.ring.shape[1]]

    def check_window(self, wanted: int) -> None:
        """A hook may look back as far as the layout's ring says for this request's params."""
        kept = 0 if self.ring is None else self.ring.shape[1]
        assert wanted <= kept, f"{wanted} queries asked for, {kept} kept"

    def counts(self, place: tuple[int, int], new: int, newest: str, steps: int, prompt_done: bool) -> Counts:
        """The counts of one (layer, KV head) with `new` rows added, as the host arithmetic of hooks sees them."""
        rows = {(zone, part): int(held[place]) + (new if zone == newest else 0) for (zone, part), held in self.zone_rows.items()}
        before = 0 if self.prompt_rows is None else int(self.prompt_rows[place])
        return Counts(int(self.rows[place]) + new, rows, before, steps, prompt_done)
