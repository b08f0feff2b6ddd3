"""What one layer holds during a step: rows in position order, their payload and states, and what hooks have decided about them so far.

Nothing that a hook does touches stored rows: evictions, moves and new state values wait here until commit_step (settle.py), so a step
that fails leaves everything as it was. Later expressions of a hook see the decisions: after an eviction the token axis holds the kept rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .attention.observe import QueryBlock
from .layout import PARTS, Part
from .states import dtype_of
from .step import Step
from .zones import PagedArray, pick

if TYPE_CHECKING:
    from .storage import Storage


class Resident:
    """One layer of one step. The token axis is padded to the longest (row, head)."""

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
        self.selection: Tensor | None = None
        self.lse: Tensor | None = None  # [q_head, query] of a chunk's attention, where it tells; see View.mass
        self._cache: dict[str, Tensor] = {}

    # ---- what hooks have decided so far ----------------------------------------------------------

    # How many rows stay or go, the device says. It is asked when somebody wants to know: at the end of a step for all layers at once.

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

    @property
    def visible(self) -> Tensor:
        """Rows that each query of the step may attend to [row, query, kv_head or 1, token]: the new rows are the newest, in query order."""
        assert self.source is None, "queries of the step attend before anything is evicted"
        return self.step.memo("visible", self.layer, lambda: self.visible_to(0, self.step.tokens, self.width))

    def visible_to(self, first: int, last: int, width: int) -> Tensor:
        """The part of `visible` for queries [first, last) and the first `width` entries."""
        queries = torch.arange(first, last, device=self.step.device)[:, None, None]
        rank = self.len[:, None, :, None] - self.step.tokens + queries
        return torch.arange(width, device=self.step.device) <= rank

    @property
    def plain(self) -> bool:
        """Every query sees all rows up to its own: nothing was chosen, and all heads hold equally many rows."""
        return self.selection is None and bool((self.rows == self.rows[:1, :1]).all())

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

    # ---- payload -------------------------------------------------------------------------------

    def stored(self, part: Part) -> Tensor:
        """K or V as stored and decoded [row, kv_head, token, channel], before evictions of this step; padding is zero."""
        return self._cached(f"stored {part}", lambda: self._read(part))

    def payload(self, part: Part) -> Tensor:
        """`stored` on the current token axis."""
        stored = self.stored(part)
        return stored if self.source is None else pick(stored, self.source)

    def keys(self) -> Tensor:
        """K as attention sees it, rotated, on the current token axis."""
        if self.storage.layout.position == "logical":
            return self.payload("K")
        return self._cached(f"rotated {self.source is None}", lambda: self._rotated(self.payload("K"), self.order, 1))

    def raw_keys(self) -> Tensor:
        """K before RoPE."""
        if self.storage.layout.position == "rank":
            return self.payload("K")
        return self._rotated(self.payload("K"), self.pos, -1)

    @property
    def pos(self) -> Tensor:
        """Logical positions [row, kv_head, token] int64; padding is -1."""
        return self._cached(f"pos {self.source is None}", self._positions)

    def forget_payload(self) -> None:
        """Drops gathered tensors: a layer's K and V are needed only while the layer runs or its hook does."""
        self._cache.clear()
        self.lse = None

    def _read(self, part: Part) -> Tensor:
        pieces, counts = [], []
        for zone in self.storage.zone_names:
            rows = self.stored_rows[zone, part]
            if rows.any():
                store = self.storage.stores[zone, part]
                piece = store.read(self.step.addresses[store.stream.name], self.layer, int(rows.max()))
                pieces.append(piece if (rows == rows.max()).all() else self._emptied(piece, zone, part))
                counts.append(rows)
        if len(pieces) == 1:
            return pieces[0]
        joined = torch.cat(pieces, dim=2)
        if all((rows == rows[0, 0]).all() for rows in counts):
            return joined
        return pick(joined, self._joined_index(counts, [piece.shape[2] for piece in pieces]))

    def _emptied(self, piece: Tensor, zone: str, part: Part) -> Tensor:
        """Zeros behind the rows of each (row, head): a page is never cleared, and 0 times a stale number that is none would poison a sum."""
        held = self.step.memo(f"stored rows {zone} {part}", self.layer, lambda: self.counts(self.stored_rows[zone, part]))
        behind = torch.arange(piece.shape[2], device=self.step.device) >= held[..., None]
        return piece.masked_fill_(behind[..., None], 0)

    def _joined_index(self, counts: list[np.ndarray], widths: list[int]) -> Tensor:
        """Entry of the padded pieces for each row of the token axis."""
        order = np.arange(int(self.step.rows[:, self.layer].max()))
        index = np.broadcast_to(order, (*self.rows.shape, len(order))).copy()
        low, offset = np.zeros_like(self.rows), 0
        for rows, width in zip(counts, widths):
            inside = (order >= low[..., None]) & (order < (low + rows)[..., None])
            index = np.where(inside, order - low[..., None] + offset, index)
            low, offset = low + rows, offset + width
        return self.step.on_device(index)

    def _positions(self) -> Tensor:
        if self.storage.positions is None:
            order = self.order.expand(*self.rows.shape, self.width)
            return torch.where(self.valid, order, -1)
        return torch.where(self.valid, self._token_values(self.storage.positions), -1).to(torch.int64)

    def _rotated(self, x: Tensor, positions: Tensor, direction: int) -> Tensor:
        rope = self.storage.rope
        if positions.ndim == 1:
            cos, sin = self.step.memo(f"angles {self.width}", self.layer, lambda: rope.cos_sin(positions))
            return rope.rotate(x, cos.expand(*x.shape[:2], *cos.shape), sin.expand(*x.shape[:2], *sin.shape))
        cos, sin = rope.cos_sin(positions)
        if direction < 0:
            cos, sin = cos / rope.scaling**2, -sin / rope.scaling**2
        return rope.rotate(x, cos, sin)

    # ---- queries -------------------------------------------------------------------------------

    def attended_by(self, first: int, last: int, width: int) -> Tensor:
        """Rows that queries [first, last) attend to [row, query, kv_head|1, group|1, token]: visible, and selected if a selection was made."""
        visible = self.visible_to(first, last, width)[:, :, :, None]
        if self.selection is None:
            return visible
        chosen = self.selection
        chosen = chosen if chosen.shape[1] == 1 else chosen[:, first:last]
        return visible & (chosen if chosen.shape[-1] == 1 else chosen[..., :width])

    def window(self, n: Tensor | int, scale: float) -> QueryBlock:
        """The newest n queries of each sequence, from its ring; a row that asks for fewer than its batch mates has the others masked."""
        step = self.step
        ends = step.on_device(step.starts + step.tokens)[:, None]
        wanted = n[:, None] if isinstance(n, Tensor) else step.known(np.full((len(step.sequences), 1), n))
        asked = wanted[:, 0].tolist()
        for sequence, own in zip(step.sequences, asked):
            sequence.check_window(own)
        widest = max(1, *asked)
        position = ends - widest + torch.arange(widest, device=step.device)
        real = (position >= 0) & (position >= ends - wanted)
        queries = torch.stack([sequence.ring_at(self.layer, row) for sequence, row in zip(step.sequences, position)])
        queries = queries.unflatten(2, (self.storage.heads, -1))
        if self.storage.layout.position == "rank":
            queries = self._at_rank(queries, position)
        return QueryBlock(queries, position, real, self.keys(), scale=scale, row_pos=self.pos)

    def _at_rank(self, queries: Tensor, position: Tensor) -> Tensor:
        """Queries [row, query, kv_head, group, channel] rotated at the rank of their own row among the rows now held."""
        cos, sin = self.storage.rope.cos_sin(self.rank_of(position))
        return self.storage.rope.rotate(queries, cos[:, :, :, None], sin[:, :, :, None])

    def rank_of(self, position: Tensor) -> Tensor:
        """How many of the rows now held are older than positions [row, query]: [row, query, kv_head]."""
        return ((self.pos[:, None] < position[:, :, None, None]) & self.valid[:, None]).sum(-1)

    # ---- states --------------------------------------------------------------------------------

    @property
    def pages(self) -> int:
        """Pages of the longest (row, head)."""
        return -(-self.width // self.storage.page_size)

    def state(self, name: str) -> Tensor:
        """[row, *letters] of this layer; padding of a token state holds the initial value."""
        if name in self.storage.token_states:
            value = self.token_state(name)
            return value if "h" in self.storage.token_states[name][0].letters else value[:, 0]
        if name in self.storage.page_states:
            if name not in self.states:
                self.states[name] = self._page_values(self.storage.page_states[name][1])
            return self.states[name]
        return self.step.plain_state(name, self.layer)

    def set_state(self, name: str, value: Tensor) -> None:
        if name in self.storage.token_states:
            spread = value if "h" in self.storage.token_states[name][0].letters else value[:, None]
            self._set_token_state(name, spread)
        elif name in self.storage.page_states:
            self.states[name] = value
        else:
            self.step.set_plain_state(name, self.layer, value)

    def shared(self, name: str) -> Tensor:
        """A step-wide value [row, *letters]; before any layer wrote it, its initial value."""
        if name not in self.step.shared_states:
            layout = self.storage.shared_states[name]
            known = {"t": self.width, "p": self.pages, "i": self.step.tokens}
            shape = [known[letter] if letter in known else self.storage.extent(letter, layout) for letter in layout.letters]
            kind = dtype_of(layout.dtype, self.storage.dtype)
            return torch.full((len(self.step.sequences), *shape), layout.initial, dtype=kind, device=self.step.device)
        return self.step.shared_states[name]

    def summary(self, name: str) -> Tensor:
        """[row, kv_head, page, *channels]"""
        assert self.source is None, "summaries are rebuilt at the end of the step: read them before evicting"
        return self._page_values(self.storage.summaries[name][1])

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

    def _page_values(self, array: PagedArray) -> Tensor:
        units = self.step.addresses[self.storage.row_stream.name].units(self.layer)
        return array.gather(self.layer, units)[:, :, : self.pages]

    # ---- decisions -----------------------------------------------------------------------------

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
        self.lse = None  # of rows that are gone
        self._rows = kept
        for key in ("len", "valid", "pos False", "rotated False"):
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

    def _cached(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]
