"""Param values for the oracle: what the caller gives, else the declared default, evaluated in order of declaration."""

from __future__ import annotations

from collections.abc import Mapping

from sparsec.dsl import tree as t
from sparsec.reference.evaluate import evaluate
from sparsec.reference.moment import Moment
from sparsec.reference.program import Program
from sparsec.reference.rows import Rows
from sparsec.reference.values import Scalar


def resolved(method: t.Method, given: Mapping[str, Scalar], facts: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """A value for every param of the method."""
    values: dict[str, Scalar] = dict(given)
    for param in method.of(t.Param):
        name = param.name.text
        if name in values:
            continue
        if param.unit.text == "choice":
            assert isinstance(param.default, t.Ref), "the default of a choice is a word"
            values[name] = param.default.name.text
        else:
            values[name] = evaluate(param.default, _moment(Program.of(method, values, facts)))
    return values


def _moment(program: Program) -> Moment:
    rows = Rows.empty(1)
    return Moment(program, None, 0, rows, rows, "params", dict(program.facts))
