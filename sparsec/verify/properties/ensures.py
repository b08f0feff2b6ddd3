"""Every `ensure` of the method, each a property of its own: broken where the oracle evaluates it to false."""

from __future__ import annotations

from functools import partial

from sparsec.dsl import tree as t
from sparsec.verify.case import Case
from sparsec.verify.property import Found, Property, Untried, Violation


def properties(method: t.Method) -> tuple[Property, ...]:
    """One property per clause of the method."""
    return tuple(Property(f'ensure "{clause.text}"', "reference", partial(_check, clause)) for clause in method.of(t.Ensure))


def _check(clause: t.Ensure, case: Case) -> Found:
    for inputs in case.traces:
        run = case.reference(inputs)
        broken = next((failure for failure in run.broken if failure.text == clause.text), None)
        if broken is not None:
            yield Violation(f'ensure "{clause.text}" does not hold', inputs, broken.step, broken.layer, line=clause.span.line)
        elif not run.due[clause.text]:
            yield Untried("it was never due: no trace reached the hook, layer or phase that it is about")
