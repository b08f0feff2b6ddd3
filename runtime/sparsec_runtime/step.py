"""One forward of one batch: its requests, host counts, tables on the device, and the tensors that all layers share.

Counts on the host are numpy int64 [row, layer, kv_head]. Layers of a shared scope hold equal counts, so what depends on counts alone is
computed once and reused (`memo`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from .gpu.transfer import sent
from .known import Known
from .layout import Layout, Part
from .sequence import Sequence
from .zones import Addresses

STEP_FAILURES = (RuntimeError, ValueError, ArithmeticError, IndexError, MemoryError)  # what a request may bring about: it fails, and nothing else does
SMALL = 1 << 12  # bytes of values that are worth comparing with those sent before

T = TypeVar("T")
Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Either decode rows (tokens = 1 each) or one prefill chunk of one request.

    prompt_done: the chunk ends the prompt, or these are decode tokens. steps[row]: decode steps done before this one.
    """

    handles: tuple[int, ...]
    tokens: int
    phase: Phase
    prompt_done: bool
    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.handles and len(self.handles) == len(self.steps), "a step needs rows, and one `steps` for each"
        assert self.phase == "decode" or len(self.handles) == 1, "a prefill chunk is a batch of its own"
        assert self.phase == "prefill" or (self.tokens == 1 and self.prompt_done), "a decode row has one token, after its prompt"
        assert self.tokens > 0, "a step of no tokens"
        assert len(set(self.handles)) == len(self.handles), "a request occurs twice in one step"


class Step:
    """Built by begin_step; read by residents and views."""

    def __init__(
        self, batch: StepBatch, sequences: list[Sequence], addresses: dict[str, Addresses], device: torch.device, layout: Layout
    ) -> None:
        self.batch, self.sequences, self.addresses, self.device = batch, sequences, addresses, device
        self.before = np.stack([sequence.rows for sequence in sequences])
        self.rows = self.before + batch.tokens
        self.starts = np.array([sequence.length for sequence in sequences], dtype=np.int64)
        self.steps = np.array(batch.steps, dtype=np.int64)  # decode steps done before this one [row]
        self.shared_states: dict[str, Tensor] = {}
        self.plain_states: dict[tuple[str, int], Tensor] = {}  # new values; layer -1 where a state spans layers
        self.prompt_rows = np.stack([np.zeros_like(sequence.rows) if sequence.prompt_rows is None else sequence.prompt_rows for sequence in sequences])
        self._one_count = layout.scope == "shared"
        self._spanning = frozenset(state.name for state in layout.plain_states if "l" in state.letters)
        self._memo: dict[tuple[str, int], object] = {}
        self._params: dict[str, Tensor] = {}
        self._sent: dict[tuple[object, ...], Tensor] = {}

    @property
    def tokens(self) -> int:
        return self.batch.tokens

    @property
    def ends_prompt(self) -> bool:
        return self.batch.phase == "prefill" and self.batch.prompt_done

    def zone_rows(self, zone: str, part: Part, layer: int) -> np.ndarray:
        """Rows [row, kv_head] whose part lies in a zone before any hook of this step; new rows are not counted here."""
        return np.stack([sequence.zone_rows[zone, part][layer] for sequence in self.sequences])

    def layer_of_rows(self, layer: int) -> np.ndarray:
        """[row]"""
        return np.full(len(self.sequences), layer)

    def newest_queries(self, layer: int, positions: Tensor) -> Tensor:
        """Queries [row, query, q_head, channel] at positions [row, query], from the rings of the sequences."""
        return torch.stack([sequence.ring_at(layer, row) for sequence, row in zip(self.sequences, positions)])

    def memo(self, name: str, layer: int, make: Callable[[], T]) -> T:
        """`make()` once per step where layers hold equal counts, else once per layer."""
        key = (name, 0 if self._one_count else layer)
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def on_device(self, values: np.ndarray) -> Tensor:
        """Values on the device, never to be changed there: who sends the same again, as layers with equal counts do, gets the same tensor."""
        key = (values.dtype.str, values.shape, values.tobytes()) if values.nbytes <= SMALL else None
        if key is None:
            return sent(values, self.device)
        if key not in self._sent:
            self._sent[key] = sent(values.copy(), self.device)  # of a CPU too: it must stay what it was
        return self._sent[key]

    def known(self, values: np.ndarray) -> Tensor:
        """`on_device`, and the host goes on knowing them."""
        here = np.array(values)
        return Known.of(self.on_device(here), lambda: torch.from_numpy(here)) if self.apart else self.on_device(here)

    @property
    def apart(self) -> bool:
        """Whether the host would wait for the device to read what lies there."""
        return self.device.type != "cpu"

    @property
    def query_pos(self) -> Tensor:
        """Logical positions [row, query] of the step's queries."""
        return self.memo("query_pos", 0, lambda: self.on_device(self.starts)[:, None] + torch.arange(self.tokens, device=self.device))

    def param(self, name: str) -> Tensor:
        """A per-request param as [row]: int64, float64 or bool."""
        if name not in self._params:
            values = [sequence.params[name] for sequence in self.sequences]
            kind = {bool: np.bool_, int: np.int64, float: np.float64}[type(values[0])]
            self._params[name] = self.known(np.array(values, dtype=kind))
        return self._params[name]

    def plain_state(self, name: str, layer: int) -> Tensor:
        """A state that follows no row: [row, *letters]."""
        key = self._plain_key(name, layer)
        if key not in self.plain_states:
            stored = [sequence.states[name] for sequence in self.sequences]
            self.plain_states[key] = torch.stack([value if key[1] < 0 else value[layer] for value in stored])
        return self.plain_states[key]

    def set_plain_state(self, name: str, layer: int, value: Tensor) -> None:
        self.plain_states[self._plain_key(name, layer)] = value

    def store_plain_states(self) -> None:
        """commit: the new values become the requests' own."""
        for (name, layer), values in self.plain_states.items():
            for sequence, value in zip(self.sequences, values):
                target = sequence.states[name] if layer < 0 else sequence.states[name][layer]
                target.copy_(value)

    def _plain_key(self, name: str, layer: int) -> tuple[str, int]:
        return (name, -1 if name in self._spanning else layer)
