"""What one layer of a step gives hooks and attention to read: K, V and positions of the rows that it holds (held.py), queries, summaries and states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .attention.observe import QueryBlock
from .held import HeldRows
from .layout import Part
from .states import dtype_of
from .step import Step
from .zones import PagedArray, Pieces, RawStore, pick

if TYPE_CHECKING:
    from .storage import Storage


class Resident(HeldRows):
    """One layer of one step."""

    def __init__(self, storage: Storage, step: Step, layer: int) -> None:
        super().__init__(storage, step, layer)
        self.selection: Tensor | None = None
        self.lse: Tensor | None = None  # [q_head, query] of a chunk's attention, where it tells; see View.mass

    # ---- what queries see ----------------------------------------------------------------------

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

    def pieces(self, part: Part) -> Pieces:
        """K as attention sees it, or V, of a step of one request whose heads hold equal counts: as it lies, if it lies so in one zone."""
        storage = self.storage
        store = storage.stores[storage.newest_zone, part]
        if len(storage.zone_names) > 1 or not isinstance(store, RawStore) or (part == "K" and storage.layout.position != "logical"):
            return Pieces((self.keys() if part == "K" else self.payload("V"))[0])
        assert self.source is None, "queries of the step attend before anything is evicted"
        return store.pieces(self.step.addresses[store.stream.name], self.layer, self.width)

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
        queries = step.newest_queries(self.layer, position).unflatten(2, (self.storage.heads, -1))
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

    def take_over(self, layers: Sequence[Resident]) -> None:
        """What hooks before sampling decided in the layers whose rows these are, one behind another: moves and new values of states."""
        assert all(each.source is None for each in layers), "hooks evict after sampling"
        self._zone_rows = {key: np.concatenate([each.zone_rows[key] for each in layers]) for key in self._zone_rows}
        self.doubted = [right for each in layers for right in each.doubted]
        self.moved = any(each.moved for each in layers)
        for name in {name for each in layers for name in each.states}:
            layout, width = (self.storage.token_states[name][0], self.width) if name in self.storage.token_states else (self.storage.page_states[name][0], self.pages)
            self.states[name] = torch.cat([_widened(each.new_values(name), width, layout.initial) for each in layers])

    def new_values(self, name: str) -> Tensor:
        """Of a token state [row, kv_head, token], or of a page state [row, kv_head, page, *letters]."""
        return self.token_state(name) if name in self.storage.token_states else self.state(name)

    def _page_values(self, array: PagedArray) -> Tensor:
        units = self.step.addresses[self.storage.row_stream.name].units(self.layer)
        return array.gather(self.layer, units)[:, :, : self.pages]

    def _leave(self, keep: Tensor, kept: np.ndarray) -> None:
        before = self._rows
        super()._leave(keep, kept)
        if self._rows is not before:  # what was read of rows that are gone
            self.lse = None
            for key in ("pos False", "rotated False"):
                self._cache.pop(key, None)


def _widened(values: Tensor, width: int, initial: float) -> Tensor:
    """values [row, kv_head, n, ...] with initial ones up to the width."""
    if values.shape[2] == width:
        return values
    behind = values.new_full((*values.shape[:2], width - values.shape[2], *values.shape[3:]), initial)
    return torch.cat((values, behind), dim=2)
