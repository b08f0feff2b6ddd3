"""Which rows one layer holds during a step: counts, masks, token states, and what hooks have decided about them so far.

Nothing that a hook does touches stored rows: evictions, moves and new state values wait here until commit_step (settle.py), so a step
that fails leaves everything as it was. Later expressions of a hook see the decisions: after an eviction the token axis holds the kept rows.
How many rows stay or go, the device says. It is asked when somebody wants to know: at the end of a step for all layers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .layout import PARTS, Part
from .step import Step
from .zones import PagedArray, pick

if TYPE_CHECKING:
    from .storage import Storage


class HeldRows:
    """The token axis is padded to the longest (row, head)."""

    def __init__(self, storage: Storage, step: Step, layer: int) -> None:
        self.storage, self.step, self.layer = storage, step, layer
        self._rows = step.rows[:, layer]
        newest = storage.newest_zone
        self.stored_rows = {  # where rows lie physically in this step
            (zone, part): step.zone_rows(zone, part, layer) + (step.tokens if zone == newest else 0)
            for zone in storage.zone_names
            for part in PARTS
        }
        self._zone_rows = dict(self.stored_rows)
        self._source: Tensor | None = None
        self._states: dict[str, Tensor] = {}
        self._staying: Tensor | None = None  # of an eviction that is not carried out yet: [row, kv_head, token]
        self._moving: dict[Part, tuple[Tensor, str]] = {}  # of moves that are not: rows [row, kv_head, token], and the zone that they go to
        self.doubted: list[Tensor] = []  # bool: whether rows that were moved were the oldest outside their zone, in position order
        self.moved = False
        self._cache: dict[str, Tensor] = {}

    # ---- what hooks have decided so far ----------------------------------------------------------

    @property
    def rows(self) -> np.ndarray:
        """Rows held [row, kv_head]."""
        self._evict_now()
        return self._rows

    @property
    def zone_rows(self) -> dict[tuple[str, Part], np.ndarray]:
        """Where rows will lie, once the step is committed."""
        self.carry_out()
        return self._zone_rows

    def rows_in(self, zone: str, part: Part) -> np.ndarray:
        """`zone_rows` of one part; moves of the other one are not waited for."""
        return self._zones_of(part)[zone, part]

    @property
    def source(self) -> Tensor | None:
        """[row, kv_head, token]: the stored row of each entry, once rows were evicted."""
        self._evict_now()
        return self._source

    @source.setter
    def source(self, rows: Tensor) -> None:
        self._source = rows

    @property
    def states(self) -> dict[str, Tensor]:
        """New values of token states and page states, on the current token axis."""
        self._evict_now()
        return self._states

    @property
    def awaited(self) -> list[Tensor]:
        """Counts [row, kv_head] on the device that `carry_out` needs: of rows that stay, or of rows of a part that go."""
        staying = [] if self._staying is None else [self._staying.sum(-1)]
        return staying + [rows.sum(-1) for rows, _ in self._moving.values()]

    def carry_out(self, told: Sequence[np.ndarray] | None = None) -> None:
        """Evictions and moves that were decided and not carried out yet. told: what is awaited (None: the device is asked)."""
        if self._staying is None and not self._moving:
            return
        counts = iter([count.cpu().numpy() for count in self.awaited] if told is None else told)
        keep, moving = self._staying, self._moving
        self._staying, self._moving = None, {}
        if keep is not None:
            self._leave(keep, next(counts))
        for part, (rows, zone) in moving.items():
            self._go(part, rows, zone, next(counts))

    def _evict_now(self) -> None:
        if self._staying is not None:
            self.carry_out()

    def _zones_of(self, part: Part) -> dict[tuple[str, Part], np.ndarray]:
        if self._staying is not None or part in self._moving:
            self.carry_out()
        return self._zone_rows

    # ---- counts and masks ----------------------------------------------------------------------

    @property
    def width(self) -> int:
        return int(self.rows.max())

    def counts(self, rows: np.ndarray) -> Tensor:
        """Host counts [row, kv_head] on the device: [row, kv_head], or [row, 1] where heads hold equal counts."""
        return self.step.known(rows if self.storage.ragged_heads else rows[:, :1])

    @property
    def len(self) -> Tensor:
        """[row, kv_head or 1]"""
        if self.source is None:
            return self.step.memo("len", self.layer, lambda: self.counts(self.rows))
        return self._cached("len", lambda: self.counts(self.rows))

    @property
    def order(self) -> Tensor:
        """Rank of each entry [token]."""
        return torch.arange(self.width, device=self.step.device)

    @property
    def valid(self) -> Tensor:
        """[row, kv_head or 1, token]"""
        if self.source is None:
            return self.step.memo("valid", self.layer, lambda: self.order < self.len[..., None])
        return self._cached("valid", lambda: self.order < self.len[..., None])

    def in_zone(self, zone: str, part: Part) -> Tensor:
        """[row, kv_head or 1, token]"""
        low, high = self.zone_range(zone, part, self._zones_of(part))
        return (self.order >= self.counts(low)[..., None]) & (self.order < self.counts(high)[..., None])

    def zone_range(self, zone: str, part: Part, rows: dict[tuple[str, Part], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """First row and end of a zone [row, kv_head]: zones hold position-ordered runs, the newest zone last."""
        low = np.zeros_like(self.rows)
        for name in self.storage.zone_names:  # oldest rows first
            high = low + rows[name, part]
            if name == zone:
                return low, high
            low = high
        raise AssertionError(f"no zone '{zone}'")

    # ---- evictions and moves -------------------------------------------------------------------

    def evict(self, keep: Tensor) -> None:
        """Hold only rows of keep [row, kv_head or 1, token] from here on; commit_step moves them together."""
        self.carry_out()
        self._staying = (keep & self.valid).expand(*self.rows.shape, self.width)

    def _leave(self, keep: Tensor, kept: np.ndarray) -> None:
        """Rows of keep [row, kv_head, token] become the token axis; kept [row, kv_head]: how many they are."""
        if (kept == self._rows).all():
            return
        assert (kept > 0).all(), "an eviction left no row"
        # A stable sort of the dropped flags puts the kept rows first, in position order.
        order = (~keep).to(torch.uint8).sort(dim=-1, stable=True).indices[:, :, : int(kept.max())]
        self._count_zones(keep, kept)
        assert not self.storage.page_states, "a method with page states evicts whole pages only"
        current = {name: pick(self.token_state(name), order) for name in self.storage.token_states}
        self._source = order if self._source is None else pick(self._source, order)
        self._rows = kept
        for key in ("len", "valid"):
            self._cache.pop(key, None)
        self._states = {}
        for name, values in current.items():
            self._set_token_state(name, values)

    def _count_zones(self, keep: Tensor, kept: np.ndarray) -> None:
        if len(self.storage.zone_names) == 1:
            self._zone_rows = {(self.storage.newest_zone, part): kept for part in PARTS}
            return
        self._zone_rows = {
            (zone, part): (keep & self.in_zone(zone, part)).sum(-1).cpu().numpy() for zone, part in self.zone_rows
        }

    def move(self, part: Part, rows: Tensor, zone: str) -> None:
        """Rows [row, kv_head or 1, token] of one part go to an older zone: they are the oldest that are not there yet."""
        self._zones_of(part)
        self._moving[part] = (rows & self.valid).expand(*self.rows.shape, self.width), zone

    def _go(self, part: Part, rows: Tensor, zone: str, moving: np.ndarray) -> None:
        """moving [row, kv_head]: how many rows [row, kv_head, token] go to the zone."""
        if not moving.any():
            return
        held = self._zone_rows
        _, end = self.zone_range(zone, part, held)
        start, stop = self.counts(end)[..., None], self.counts(end + moving)[..., None]
        self.doubted.append((rows == (self.order >= start) & (self.order < stop)).all())
        self.moved = True
        left = moving
        names = self.storage.zone_names
        for source in names[names.index(zone) + 1 :]:
            taken = np.minimum(left, held[source, part])
            held[source, part] = held[source, part] - taken
            left = left - taken
        assert not left.any(), f"{left.max()} rows moved to zone '{zone}' lie in no newer zone"
        held[zone, part] = held[zone, part] + moving

    # ---- token states --------------------------------------------------------------------------

    def token_state(self, name: str) -> Tensor:
        """[row, kv_head, token]"""
        if name not in self.states:
            layout, array = self.storage.token_states[name]
            stored = self._token_values(array)
            self.states[name] = torch.where(self.valid, stored, torch.full_like(stored, layout.initial))
        return self.states[name]

    def _set_token_state(self, name: str, value: Tensor) -> None:
        layout, array = self.storage.token_states[name]
        initial = torch.full((), layout.initial, dtype=array.data.dtype, device=self.step.device)
        self.states[name] = torch.where(self.valid, value.to(array.data.dtype), initial).expand(*self.rows.shape, self.width)

    def _token_values(self, array: PagedArray) -> Tensor:
        """A row array [row, kv_head, token] on the current token axis."""
        stored = array.gather(self.layer, self.step.addresses[self.storage.row_stream.name].units(self.layer))
        return stored[:, :, : int(self.step.rows[:, self.layer].max())] if self.source is None else pick(stored, self.source)

    def _cached(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]
