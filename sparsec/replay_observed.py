"""What a replay sees of a generated manager: values and reads as hooks and attention produce them, and queries that must not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

import torch
from torch import Tensor

from sparsec_runtime.abi import CacheManager, QueryBlock, View
from sparsec_runtime.decode_plan import Reduction
from sparsec_runtime.hooks import HOOKS
from sparsec_runtime.resident import Resident
from sparsec_runtime.sequence import Sequence

from sparsec.replay import ReplayError
from sparsec.trace import Recorded


def over_rows(value: Tensor, letters: tuple[str, ...], pos: Tensor, support: Tensor | None) -> Recorded:
    """A value of one batch row, with the positions of its token axis; -1 where it is not defined."""
    if "t" not in letters:
        return Recorded(value, letters)
    positions = pos if support is None else torch.where(support.expand(pos.shape), pos, -1)
    return Recorded(value, letters, positions)


class Observed(CacheManager):
    """What the driver needs beyond the engine's interface. `missing`: per row, how many of the step's first queries were not given."""

    missing: list[int]
    starts: list[int]

    @property
    def open_handles(self) -> frozenset[int]:
        return frozenset(self._sequences)

    def resident(self, layer: int) -> Resident:
        return self._residents[layer]

    def sequence(self, handle: int) -> Sequence:
        return self._sequences[handle]


def observed(generated: type[CacheManager], starts: list[int]) -> type[Observed]:
    """The generated manager with hooks that refuse to read queries that were not given."""
    members: dict[str, object] = {}
    if any(starts):
        for hook in HOOKS:
            if hasattr(generated, hook):
                members[hook] = _guarded(hook, getattr(generated, hook))
    return type("Observed", (generated, Observed), members)


def _guarded(hook: str, method: Callable[[CacheManager, View], None]) -> Callable[[Observed, View], None]:
    def run_hook(self: Observed, view: View) -> None:
        method(self, _GuardedView(view, hook, self.missing))

    return run_hook


class _GuardedView:
    """A View that knows which queries are missing."""

    def __init__(self, view: View, hook: str, missing: list[int]) -> None:
        self._view, self._hook, self._missing = view, hook, missing

    def __getattr__(self, name: str) -> object:
        if name == "Q":
            self._check_step()
        return getattr(self._view, name)

    def blocks(self) -> Iterator[QueryBlock]:
        self._check_step()
        return self._view.blocks()

    def mass(self, over_g: Reduction) -> Tensor:
        self._check_step()
        return self._view.mass(over_g)

    def window(self, n: Tensor | int) -> QueryBlock:
        block = self._view.window(n)
        tokens, done = self._view._step.tokens, self._view._step.starts
        for row, missing in enumerate(self._missing):
            start = int(done[row]) + min(missing, tokens) if missing else 0
            if missing and bool((block.query_pos[row][block.query_valid[row]] < start).any()):
                self._refuse(start)
        return block

    def _check_step(self) -> None:
        if any(self._missing):
            self._refuse(max(self._missing))

    def _refuse(self, start: int) -> NoReturn:
        raise ReplayError(f"{self._hook} observes queries before q_start: give q from the first token on, or chunks that begin at q_start")


class Recorder:
    """Receives lets as hooks define them, and the rows that each layer's last query reads."""

    def __init__(self, manager: Observed) -> None:
        self.manager = manager
        self.begin()

    def begin(self) -> None:
        self._lets: dict[tuple[str, int], tuple[Tensor, tuple[str, ...], Tensor]] = {}
        self._read: dict[int, tuple[Tensor, Tensor]] = {}

    def value(self, view: View, name: str, value: Tensor, letters: tuple[str, ...]) -> None:
        self._lets[name, view.some_layer] = (torch.as_tensor(value), letters, view.pos)

    def attended(self, layer: int, mask: Tensor) -> None:
        self._read[layer] = (mask, self.manager.resident(layer).pos)

    def read_by_last(self, layer: int, row: int, blind: bool) -> list[Tensor]:
        """Positions per query head."""
        mask, pos = self._read[layer]
        heads, group = pos.shape[1], int(self.manager.model_facts["group"])
        if blind:
            return [torch.zeros(0, dtype=torch.int64) for _ in range(heads * group)]
        chosen = mask[row].expand(heads, group, pos.shape[-1])
        return [pos[row, h][chosen[h, g]] for h in range(heads) for g in range(group)]

    def let(self, name: str, layer: int, row: int) -> Recorded | None:
        if (name, layer) not in self._lets:
            return None
        value, letters, pos = self._lets[name, layer]
        support = self._lets.get((f"{name} where", layer))
        defined = None if support is None else support[0][min(row, support[0].shape[0] - 1)]
        if value.ndim <= len(letters):
            return Recorded(value, letters)
        return over_rows(value[min(row, value.shape[0] - 1)], letters, pos[row], defined)
