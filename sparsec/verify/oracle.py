"""One sequence through the oracle: what it kept, read and returned after every step, and which ensures were due and broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference import EnsureFailure, Program, Sequence
from sparsec.reference.storage import Inputs as OracleInputs
from sparsec.reference.values import Value
from sparsec.verify.ensures import clause_of
from sparsec.verify.traces import ROPE_THETA, Inputs
from sparsec_runtime.rope import Rope


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """After one step (0: the whole prompt). By layer: kept bool [kv_head, token]; attended bool [query, q_head, token] and out
    [query, q_head, channel] of the queries of the step's last chunk; zones int [part, kv_head, token]; states by name."""

    kept: list[Tensor]
    attended: list[Tensor]
    out: list[Tensor]
    zones: list[Tensor]
    states: list[dict[str, Value]]


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """Rows of one head that lie in a store of codes: exact, decoded and scale [token, channel], at `positions` [token]."""

    store: str
    line: int
    layer: int
    head: int
    positions: Tensor
    exact: Tensor
    decoded: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """broken: failures in order of step; due: how often each clause was evaluated; codes: what lies in codes at the end."""

    steps: list[Step]
    codes: list[Codes] = field(default_factory=list)
    broken: list[EnsureFailure] = field(default_factory=list)
    due: Counter[str] = field(default_factory=Counter)


def interpret(program: Program, inputs: Inputs, chunk: int | None) -> Run:
    """The prompt in chunks, then every decode token."""
    rope = Rope.plain(ROPE_THETA, inputs.k.shape[-1])
    recorded = OracleInputs(inputs.q, inputs.k, inputs.v, rotated=False, rope=rope)
    sequence = Sequence(program, recorded, inputs.prompt_len, check_ensures=True)
    sequence.prefill(chunk)
    steps = [_after_step(sequence)]
    for _ in range(inputs.new):
        sequence.decode()
        steps.append(_after_step(sequence))
    run = Run(steps, list(_codes(sequence)))
    for failure in sequence.failures:
        clause, twin = clause_of(failure.text)
        if twin:
            run.due[clause] += 1
        else:
            run.broken.append(failure)
    return run


def _after_step(sequence: Sequence) -> Step:
    storage = sequence.storage
    states: list[dict[str, Value]] = [{} for _ in range(sequence.layers)]
    for (name, layer), value in storage.states.items():
        states[layer][name] = value if isinstance(value, Value) else Value(torch.as_tensor(value), ())
    return Step(
        [rows.resident for rows in storage.rows],
        [output.attended for output in sequence.outputs],
        [output.out for output in sequence.outputs],
        [torch.stack((rows.zone_k, rows.zone_v)) for rows in storage.rows],
        states,
    )


def _codes(sequence: Sequence) -> Iterator[Codes]:
    """Stores that encode K, V or K_raw itself; of another value the exact one is gone when the row has been moved."""
    program = sequence.program
    for index, zone in enumerate(program.zones):
        for store in zone.stores:
            source = store.value.name.text if isinstance(store.value, t.Ref) else None
            part = {"K": "K", "V": "V"}.get(source or "")
            if store.dtype.name.text == "int" and part is not None:
                for layer in range(sequence.layers):
                    yield from _codes_of_layer(sequence, store, index, part, layer)


def _codes_of_layer(sequence: Sequence, store: t.Store, zone: int, part: str, layer: int) -> Iterator[Codes]:
    name = store.target.name.text
    encoded = sequence.storage.encoded.get((name, layer))
    if encoded is None or encoded.scale is None or set(encoded.letters) != {"h", "t", "c"}:
        return
    original = sequence.inputs.v if part == "V" else sequence.inputs.k
    exact = original[layer] if part == "V" else sequence.storage.read("raw K", layer)
    inside = sequence.storage.rows[layer].in_zone(zone, part)
    for head in range(inside.shape[0]):
        positions = inside[head].nonzero().flatten()
        if len(positions):
            decoded, scale = (Value(x, encoded.letters).over(("h", "t", "c"))[head, positions] for x in (encoded.values, encoded.scale))
            yield Codes(name, store.span.line, layer, head, positions, exact[positions, head], decoded, scale)
