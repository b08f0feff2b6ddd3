"""Walks over steps: the ops of a step, the params that a body reads."""

from __future__ import annotations

from collections.abc import Iterator

from sparsec.codegen.plan import Accumulate, Attend, Bind, Evict, Move, Op, Record, Skip, Step, Update, walk


def roots(step: Step) -> tuple[Op, ...]:
    """The values that a step computes."""
    match step:
        case Bind() | Accumulate() | Record():
            return (step.value,)
        case Skip():
            return (step.condition,)
        case Update():
            return (step.value,) if step.when is None else (step.value, step.when)
        case Evict():
            return (step.keep,) if step.when is None else (step.keep, step.when)
        case Attend():
            return (step.read,) if step.when is None else (step.read, step.when)
        case Move():
            return (step.rows,) if step.when is None else (step.rows, step.when)


def ops_of(steps: tuple[Step, ...]) -> Iterator[Op]:
    for step in steps:
        for root in roots(step):
            yield from walk(root)


def param_names(steps: tuple[Step, ...], order: tuple[str, ...]) -> tuple[str, ...]:
    """Params read by the steps, in order of declaration."""
    used = {str(op.detail[0]) for op in ops_of(steps) if op.name == "param"}
    return tuple(name for name in order if name in used)
