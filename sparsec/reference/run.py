"""The reference target of `sparsec.replay`: interprets a checked method and gathers the trace."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference.program import Program
from sparsec.reference.record import Recorder, recordable
from sparsec.reference.sequence import Sequence
from sparsec.reference.storage import Inputs, MissingInput
from sparsec.reference.values import Scalar
from sparsec.replay import ReplayError, ReplayRequest, model_facts
from sparsec.trace import Trace


def interpret(method: t.Method, params: Mapping[str, Scalar], request: ReplayRequest) -> Trace:
    """Interpret a method, specialised or plain, with a value for every param that it still has."""
    program = Program.of(method, params, model_facts(request))
    check_record(program, request.record)
    inputs = Inputs(request.q, request.k, request.v, request.q_start, request.rotated, request.rope)
    recorder = Recorder(program, request.record)
    sequence = Sequence(program, inputs, request.prompt_len, recorder.let)
    gathered = _Gathered(request)
    try:
        sequence.prefill(request.chunk, gathered.outputs)
        gathered.after_step(sequence)
        recorder.after_step(sequence)
        for _ in range(request.decode_steps):
            sequence.decode(gathered.outputs)
            gathered.after_step(sequence)
            recorder.after_step(sequence)
    except MissingInput as missing:
        raise ReplayError(str(missing)) from None
    return Trace(gathered.kept, gathered.attended, gathered.output, recorder.steps)


def check_record(program: Program, names: tuple[str, ...]) -> None:
    """Every name in `record` exists in the method."""
    known = recordable(program)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known))}"
            raise ReplayError(f"record: the method has no state, let, summary or store called {name}; {hint}")


class _Gathered:
    """The parts of a trace as they come."""

    def __init__(self, request: ReplayRequest) -> None:
        self.q_start = request.q_start
        self.kept: list[list[list[Tensor]]] = []
        self.attended: list[list[list[Tensor]]] = []
        layers, tokens, heads, channels = request.q.shape
        math = torch.float64 if request.dtype == torch.float64 else torch.float32
        self.output = torch.zeros(layers, tokens, heads, channels, dtype=math)

    def outputs(self, sequence: Sequence) -> None:
        """After every chunk and decode step."""
        for layer, step in enumerate(sequence.outputs):
            self.output[layer, step.positions - self.q_start] = step.out

    def after_step(self, sequence: Sequence) -> None:
        rows = sequence.storage.rows
        self.kept.append([[head.nonzero().squeeze(-1) for head in layer.resident] for layer in rows])
        self.attended.append([_last_query(step.attended) for step in sequence.outputs])


def _last_query(attended: Tensor) -> list[Tensor]:
    """[query, q_head, token] -> positions that the last query read, per query head."""
    if attended.shape[0] == 0:
        return [torch.zeros(0, dtype=torch.int64) for _ in range(attended.shape[1])]
    return [head.nonzero().squeeze(-1) for head in attended[-1]]
