"""A View: what one hook sees of one layer, for all rows of a forward. Axes as in docs/internals.md, value conventions.

A view reads and decides; it never changes stored rows itself (see resident.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .attention.observe import QueryBlock, blocks_of
from .decode_plan import Reduction
from .layout import PARTS, Part
from .ops.reduce import align
from .resident import Resident


When = Tensor | bool | None


class Recorder(Protocol):
    """Receives what a trace wants to know; see sparsec.replay."""

    def value(self, view: View, name: str, value: Tensor, letters: tuple[str, ...]) -> None: ...

    def attended(self, layer: int, mask: Tensor) -> None:
        """mask [row, kv_head, group, token]: the rows that the step's last query attends to."""


class View:
    """Built per hook call. `queries` is None in hooks after sampling, where only `window` reads queries."""

    def __init__(
        self, resident: Resident, facts: Mapping[str, float | int], queries: Tensor | None, hidden: Tensor | None, recorder: Recorder | None
    ) -> None:
        self._resident, self._step, self._facts = resident, resident.step, facts
        self._queries, self._hidden, self._recorder = queries, hidden, recorder

    # ---- the step --------------------------------------------------------------------------------

    @property
    def layer(self) -> Tensor:
        """The layer of each row [row] int64."""
        return self._step.known(self._step.layer_of_rows(self._resident.layer))

    @property
    def some_layer(self) -> int:
        """One of the rows' layers: guards of bindings hold for all of them or for none."""
        return int(self._step.layer_of_rows(self._resident.layer)[0])

    @property
    def phase(self) -> str:
        return self._step.batch.phase

    @property
    def prefilling(self) -> bool:
        return self._step.batch.phase == "prefill"

    @property
    def ends_prompt(self) -> bool:
        """This step's chunk ends the prompt: end_of_prompt fires in it."""
        return self._step.ends_prompt

    @property
    def prompt_done(self) -> Tensor:
        """[row] bool"""
        return self._step.memo("prompt_done", 0, lambda: self._step.known(np.full(self.batch, self._step.batch.prompt_done)))

    @property
    def steps(self) -> Tensor:
        """Decode steps done before this one [row] int64."""
        return self._step.memo("steps", 0, lambda: self._step.known(self._step.steps))

    @property
    def batch(self) -> int:
        return len(self._step.sequences)

    @property
    def queries(self) -> int:
        """Queries of the step per row."""
        return self._step.tokens

    @property
    def tokens(self) -> int:
        """Entries of the token axis."""
        return self._resident.width

    @property
    def facts(self) -> Mapping[str, float | int]:
        """Model facts by name."""
        return self._facts

    @property
    def device(self) -> torch.device:
        return self._step.device

    @property
    def page_size(self) -> int:
        return self._resident.storage.page_size

    def param(self, name: str) -> Tensor:
        """A dynamic param [row]: int64, float64 or bool."""
        return self._step.param(name)

    def fact(self, name: str) -> float | int:
        """n_layers, kv_heads, head_dim, group, kv_width or scale."""
        return self._facts[name]

    # ---- rows ------------------------------------------------------------------------------------

    @property
    def host_rows(self) -> np.ndarray:
        """Rows held [row, kv_head], on the host."""
        return self._resident.rows

    @property
    def len(self) -> Tensor:
        """Rows held, new ones included: [row], or [row, kv_head] where heads hold different counts."""
        return self._per_row(self._resident.len)

    @property
    def prompt_rows(self) -> Tensor:
        """`len` right after end_of_prompt (0 before), shaped like `len`."""
        return self._per_row(self._resident.counts(self._step.prompt_rows[:, self._resident.layer]))

    def rows(self, zone: str, part: Part = "K") -> Tensor:
        """Rows whose part lies in a zone, shaped like `len`."""
        return self._per_row(self._resident.counts(self._resident.rows_in(zone, part)))

    @property
    def valid(self) -> Tensor:
        """[row, kv_head|1, token]"""
        return self._resident.valid

    @property
    def pos(self) -> Tensor:
        """Logical positions [row, kv_head, token] int64; padding is -1."""
        return self._resident.pos

    @property
    def order(self) -> Tensor:
        """Rank of each row among those of its layer and head [row, kv_head, token]."""
        return self._resident.order.expand(*self._resident.rows.shape, -1)

    @property
    def K(self) -> Tensor:
        """As attention reads it [row, kv_head, token, channel]; zero where not valid."""
        return self._zeroed(self._resident.keys())

    @property
    def V(self) -> Tensor:
        return self._zeroed(self._resident.payload("V"))

    @property
    def K_raw(self) -> Tensor:
        """K before RoPE."""
        return self._zeroed(self._resident.raw_keys())

    def in_zone(self, zone: str, part: Part | None = None) -> Tensor:
        """Rows whose part (None: both parts) lies in a zone [row, kv_head|1, token]."""
        if part is not None:
            return self._resident.in_zone(zone, part)
        return self._resident.in_zone(zone, "K") & self._resident.in_zone(zone, "V")

    # ---- queries ---------------------------------------------------------------------------------

    @property
    def Q(self) -> Tensor:
        """The step's queries, rotated [row, query, kv_head, group, channel]."""
        assert self._queries is not None, "a hook after sampling reads queries through window(n)"
        return self._queries

    @property
    def hidden(self) -> Tensor:
        """The layer's normed input of the step's tokens [row, query, hidden width]."""
        assert self._hidden is not None, "hidden is readable from kv_write to layer_end"
        return self._hidden

    @property
    def query_pos(self) -> Tensor:
        """[row, query]"""
        return self._step.query_pos

    @property
    def visible(self) -> Tensor:
        """Rows with pos <= the query's [row, query, kv_head|1, token]."""
        return self._resident.visible

    @property
    def step(self) -> QueryBlock:
        """All queries of the step as one block: for decode, and for prefill hooks that read no scores."""
        return self._block(0, self._step.tokens)

    def blocks(self) -> Iterator[QueryBlock]:
        """The step's queries in order, in pieces that bound the memory of their scores; probs are of the attention just done."""
        resident = self._resident
        heads = self.Q.shape[2] * self.Q.shape[3] * self.batch
        for first, last in blocks_of(self._step.tokens, heads, resident.width, self.device):
            yield self._block(first, last)

    def mass(self, over_g: Reduction) -> Tensor:
        """What the step's attention gave each row: the sum over its queries of the sum, mean or max over g of probs, [row, kv_head, token] fp32.

        One kernel after a chunk's attention on a GPU that told its log-sum-exp; elsewhere the blocks of queries, in order.
        """
        resident = self._resident
        if resident.lse is not None:
            from .gpu.prefill import column_mass  # imports Triton, as whoever set lse did

            return column_mass(self.Q, resident.keys(), resident.lse, float(self._facts["scale"]), over_g)
        parts = (_over_group(block.probs, over_g).sum(1) for block in self.blocks())
        return reduce(torch.add, parts)

    def _block(self, first: int, last: int) -> QueryBlock:
        resident = self._resident
        real = torch.ones((self.batch, last - first), dtype=torch.bool, device=self.device)
        mask = resident.attended_by(first, last, resident.width)
        queries, positions = self.Q[:, first:last], self.query_pos[:, first:last]
        return QueryBlock(queries, positions, real, resident.keys(), mask, float(self._facts["scale"]))

    def window(self, n: Tensor | int) -> QueryBlock:
        """The newest n ([row] or a number) queries of each sequence, the newest last; scores over the rows now held with pos <= the query's."""
        return self._resident.window(n, float(self._facts["scale"]))

    def order_of(self, query_pos: Tensor) -> Tensor:
        """Rank of each query's own row [row, query, kv_head], for positions [row, query]: how many of the rows now held are older."""
        return self._resident.rank_of(query_pos)

    # ---- states ----------------------------------------------------------------------------------

    def state(self, name: str) -> Tensor:
        """[row, *letters]; a token state is [row, kv_head, token] ([row, token] without h), padding holds the initial value."""
        return self._resident.state(name)

    def set_state(self, name: str, value: Tensor, when: When = None) -> None:
        self._resident.set_state(name, _where(when, value, lambda: self.state(name)))

    def shared(self, name: str) -> Tensor:
        """A step-wide value; the initial value where no layer has written."""
        return self._resident.shared(name)

    def set_shared(self, name: str, value: Tensor, when: When = None) -> None:
        self._step.shared_states[name] = _where(when, value, lambda: self.shared(name))

    def summary(self, name: str) -> Tensor:
        """[row, kv_head, page, *channels]; pages that page_valid leaves out mean nothing."""
        return self._resident.summary(name)

    @property
    def page_valid(self) -> Tensor:
        """Pages that hold a row [row, kv_head|1, page]."""
        pages = torch.arange(self._resident.pages, device=self.device)
        return pages * self.page_size < self._resident.len[..., None]

    # ---- decisions -------------------------------------------------------------------------------

    # `when` [row] or [row, kv_head] bool, or a Python bool: where it is False, rows keep what they have and attention reads everything.

    def evict(self, keep: Tensor, when: When = None) -> None:
        """keep [row, kv_head|1, token]: rows to hold from the next step on; later expressions of the hook see the result."""
        self._resident.evict(_where(when, keep, lambda: self.valid))

    def move(self, part: Part | None, rows: Tensor, zone: str, when: When = None) -> None:
        """rows [row, kv_head|1, token], the oldest outside the zone; part None moves both."""
        rows = _where(when, rows, lambda: torch.zeros_like(rows))
        for each in PARTS if part is None else (part,):
            self._resident.move(each, rows, zone)

    def attend(self, mask: Tensor, when: When = None) -> None:
        """Read only these rows, broadcastable to [row, query, kv_head, group, token]; several calls in one layer intersect."""
        if isinstance(when, Tensor):
            when = when[:, None]  # the query axis comes before the heads
        mask = _where(when, mask, lambda: torch.ones_like(mask))
        chosen = self._resident.selection
        self._resident.selection = mask if chosen is None else chosen & mask

    def record(self, name: str, value: Tensor, letters: tuple[str, ...]) -> None:
        """Hands a value to the trace, if there is one."""
        if self._recorder is not None:
            self._recorder.value(self, name, value, letters)

    def _per_row(self, counts: Tensor) -> Tensor:
        return counts if self._resident.storage.ragged_heads else counts[:, 0]

    def _zeroed(self, payload: Tensor) -> Tensor:
        return torch.where(self._resident.valid[..., None], payload, torch.zeros((), dtype=payload.dtype, device=payload.device))


def _where(when: When, value: Tensor, otherwise: Callable[[], Tensor]) -> Tensor:
    """The value in the rows of `when`, what was there in the others."""
    if when is None or when is True:
        return value
    if when is False:
        return otherwise()
    return torch.where(align(when, value.ndim), value, otherwise())


def _over_group(probs: Tensor, word: Reduction) -> Tensor:
    """probs [row, query, kv_head, group, token] reduced over the group."""
    return probs.amax(3) if word == "max" else probs.mean(3) if word == "mean" else probs.sum(3)
