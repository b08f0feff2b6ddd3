"""`ensure` clauses: when each is due, and whether it holds. Positional sets beside `kept` count the rows held before finish_step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sparsec.dsl import tree as t
from sparsec.reference.evaluate import evaluate
from sparsec.reference.moment import Moment
from sparsec.reference.program import Program
from sparsec.reference.rows import row_set
from sparsec.reference.values import Value

SLACK = 1e-5  # float32 rounding of sums over channels


@dataclass(frozen=True, slots=True)
class EnsureFailure:
    """`step` 0 is the prompt, then decode steps from 1."""

    text: str
    line: int
    step: int
    layer: int


def of_lets(program: Program, at: Moment, read: Value | None) -> list[tuple[t.Ensure, int]]:
    """At the end of a hook: ensures over the lets that it defined, and over `attended` if it ran an `attend`."""
    broken = []
    for item in program.method.of(t.Ensure):
        names = _names(item)
        lets = names & _lets(program)
        if not ((lets and lets <= set(at.lets)) or ("attended" in names and read is not None)):
            continue
        if read is not None:
            at = replace(at, sets={"attended": _attended(at, read)})
        if not _holds(item, at):
            broken.append((item, at.layer))
    return broken


def after_step(program: Program, at: Moment) -> list[tuple[t.Ensure, int]]:
    """After finish_step: ensures over states, len, rows and kept."""
    at = replace(at, sets={"kept": row_set(at.rows.resident)})
    broken = []
    for item in program.method.of(t.Ensure):
        names = _names(item)
        if not names & (_lets(program) | {"attended"}) and not _holds(item, at):
            broken.append((item, at.layer))
    return broken


def _attended(at: Moment, read: Value) -> Value:
    visible = Value(at.rows.visible(at.block.positions), ("i", "h", "t"))
    letters = ("i", "h", "g", "t")
    group = at.program.facts["group"]
    mask = (read.over(letters) & visible.over(letters)).expand(-1, -1, group, -1)
    return Value(mask, letters, base=("t",))


def _names(item: t.Ensure) -> set[str]:
    return {node.name.text for node in t.walk(item.condition) if isinstance(node, t.Ref)}


def _lets(program: Program) -> set[str]:
    return {node.target.name.text for hook in program.method.of(t.Hook) for node in t.walk(hook) if isinstance(node, t.Let)}


def _holds(item: t.Ensure, at: Moment) -> bool:
    """For every index value of its free letters."""
    value = evaluate(item.condition, replace(at, slack=SLACK, judging=True))
    return bool(torch.as_tensor(value.data if isinstance(value, Value) else value).all())
