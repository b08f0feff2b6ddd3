"""The Triton target of `sparsec.replay`: prompts as on the torch target, decode steps through the method's decode kernels.

The kernels, their launches and the eviction after a step are those of an engine (gpu/forward.py, gpu/graphs.py); only q, k and v come from the
request instead of from projections. Nothing is captured: what each layer read is kept before the next layer overwrites it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsec.pipeline import Compilation
from sparsec.replay import ReplayError, ReplayRequest
from sparsec.replay_torch import Driver, Run, keep_output, passing_names, run_batch, stored_names, tensors_of
from sparsec.trace import Trace
from sparsec_runtime.gpu.buffers import CHOSEN_TOKENS, DecodeBuffers
from sparsec_runtime.gpu.eligible import rope_reasons
from sparsec_runtime.gpu.forward import DecodeForward, StepKind
from sparsec_runtime.gpu.graphs import CannotCapture, DecodeGraphs
from sparsec_runtime.gpu.weights import LayerWeights
from sparsec_runtime.models.shape import ModelShape
from sparsec_runtime.resident import Resident
from sparsec_runtime.rope import Rope
from sparsec_runtime.step import Step, StepBatch


class NoKernels(ReplayError):
    """The method has no decode kernels for such a model; the text says why."""


def run(compilation: Compilation, request: ReplayRequest) -> Trace:
    """Replay one request; the compilation has the params and records what the request asks for."""
    if request.k.device.type == "cpu" and not interpreting():
        raise ReplayError('target triton on the device cpu needs TRITON_INTERPRET=1 in the environment from the start; else give device="cuda"')
    return run_batch(compilation, [(compilation.dynamic_params, request)], driver=KernelDriver)[0]


def interpreting() -> bool:
    """Whether Triton's kernels run in its interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class KernelDriver(Driver):
    """Plays the engine whose decode steps are kernels."""

    @staticmethod
    def check_record(compilation: Compilation, names: tuple[str, ...]) -> None:
        known, passing = stored_names(compilation), passing_names(compilation)
        for name in names:
            if name not in known:
                what = "lives inside a kernel" if name in passing else "does not exist"
                raise ReplayError(f"record: {name} {what}; on target triton the method stores {', '.join(sorted(known))}")

    def __init__(self, compilation: Compilation, requests: list[ReplayRequest]) -> None:
        super().__init__(compilation, requests)
        for request in requests:
            self._refuse_missing_queries(request)
        try:
            self.graphs = DecodeGraphs(GivenModel(self.shape, self.rope), self.manager, self.rows, self.longest, GivenForward, capture=False)
        except CannotCapture as reasons:
            raise NoKernels(f"{compilation.name} has no decode kernels: {reasons}") from reasons

    def _refuse_missing_queries(self, request: ReplayRequest) -> None:
        plan = self.manager.DECODE
        observing = [
            ("build_decode_selection", plan.pages is not None),
            ("after_decode_attention", plan.mass is not None or plan.tokens is not None),
            ("finish_step", plan.keep is not None and plan.keep.asked is not None),
        ]
        for hook, observes in observing:
            if observes and request.q_start > request.prompt_len:
                raise ReplayError(f"{hook} observes queries before q_start: give q from the first decode step on")

    def _decode(self, runs: list[Run]) -> None:
        graphs, forward = self.graphs, self.graphs.forward
        for each in runs:
            each.steps += 1
        handles, steps = tuple(each.handle for each in runs), tuple(each.steps for each in runs)
        graphs.begin_step(StepBatch(handles, 1, "decode", True, steps))
        forward.given.tensors = [_packed([tensors_of(each, layer, 1) for each in runs]) for layer in range(self.layers)]
        _, out = graphs.run()
        read_from = self._residents(StepBatch(handles, 1, "decode", True, steps))
        for row, each in enumerate(runs):
            each.attended.append([self._read(each, row, resident) for resident in read_from])
            for layer in range(self.layers):
                keep_output(each, layer, out[row, layer][None])
        graphs.commit_step()
        left = self._residents(_NoTokens(handles, 0, "decode", True, steps))
        for row, each in enumerate(runs):
            self._note(each, row, left)
            self._note_stored(each)
            each.done += 1

    def _residents(self, batch: StepBatch) -> list[Resident]:
        """What every layer holds, in order of position."""
        sequences = [self.manager.sequence(handle) for handle in batch.handles]
        storage = self.manager.storage
        step = Step(batch, sequences, storage.addresses(sequences), self.device, storage.layout)
        residents = [Resident(storage, step, layer) for layer in range(self.layers)]
        if any(sequence.scattered is not None for sequence in sequences):
            for resident in residents:
                resident.source = torch.where(resident.valid, resident.pos, torch.iinfo(torch.int64).max).argsort(-1)
        return residents

    def _read(self, each: Run, row: int, resident: Resident) -> list[Tensor]:
        """Positions per query head that the kernels read."""
        if each.done < each.request.q_start:
            return [torch.zeros(0, dtype=torch.int64) for _ in range(self.shape.q_heads)]
        heads = range(self.shape.kv_heads)
        chosen = self.graphs.forward.given.read[resident.layer]
        if chosen is None:
            found = [resident.pos[row, h][resident.pos[row, h] >= 0] for h in heads]
        else:
            found = [resident.pos[row, h][chosen[row][min(h, len(chosen[row]) - 1)]] for h in heads]
        return [positions for positions in found for _ in range(self.group)]


@dataclass(frozen=True, slots=True)
class _NoTokens(StepBatch):
    """Between two steps."""

    def __post_init__(self) -> None:
        assert self.tokens == 0, "a step of no tokens"


@dataclass(frozen=True, slots=True, eq=False)
class GivenModel:
    """What decode kernels need to know of the model whose tensors were recorded."""

    shape: ModelShape
    rope: Rope


@dataclass(slots=True, eq=False)
class Given:
    """tensors: qkv [row, (q_heads + 2 kv_heads) * channel] of each layer. read[layer][row]: sorted rows [kv_head or 1] that were chosen, None: all."""

    tensors: list[Tensor] = field(default_factory=list)
    read: list[list[list[Tensor]] | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class GivenForward(DecodeForward):
    """The attention of every layer, on tensors that were given; returns [row, layer, q_head, channel]."""

    given: Given = field(default_factory=Given)

    @staticmethod
    def weights_of(model: GivenModel) -> list[LayerWeights]:
        none = torch.empty(0)
        return [LayerWeights(none, none, None, None, None, none, None, none, none, none)] * model.shape.layers

    @staticmethod
    def reasons_against(method: type, model: GivenModel) -> tuple[str, ...]:
        return rope_reasons(method, model.rope, model.shape.head_dim)

    def __call__(self, buffers: DecodeBuffers, kind: StepKind) -> Tensor:
        self.begin(buffers, torch.zeros_like(buffers.x))
        self.given.read.clear()
        outputs = []
        for layer, qkv in enumerate(self.given.tensors):
            padded = torch.cat((qkv, qkv.new_zeros(buffers.rows - qkv.shape[0], qkv.shape[1])))
            outputs.append(self.attention(layer, padded, buffers, kind).clone())
            self.given.read.append(self._rows_read(layer, buffers, qkv.shape[0]))
        return torch.stack(outputs, 1)

    def _rows_read(self, layer: int, buffers: DecodeBuffers, rows: int) -> list[list[Tensor]] | None:
        counts = buffers.header[CHOSEN_TOKENS].tolist()
        if self.reads[layer]:
            return [[self._of_slots(buffers.listed[row, : counts[row]], buffers.table[row, 0])] for row in range(rows)]
        if self.chooses[layer]:
            return [[self._of_pages(head, counts[row]) for head in buffers.chosen[row]] for row in range(rows)]
        return None

    def _of_slots(self, slots: Tensor, table: Tensor) -> Tensor:
        """Rows that lie in slots of the pages of a table [index], in order of their rank."""
        page = self.storage.page_size
        index = (table == (slots // page)[:, None]).int().argmax(1)
        return (index * page + slots % page).sort().values

    def _of_pages(self, pages: Tensor, count: int) -> Tensor:
        """The first `count` rows of listed pages, in order of their rank."""
        page, n = self.storage.page_size, torch.arange(count, device=pages.device)
        return (pages[n // page].long() * page + n % page).sort().values


def _packed(tensors: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """q, k, v [1, head, channel] of each row as a fused projection gives them."""
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in tensors])
