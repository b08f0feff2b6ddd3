"""The generated code does what the oracle does: the same rows kept and read, the same zones, states and outputs, on the same traces."""

from __future__ import annotations

from functools import partial

from sparsec.verify.case import Case
from sparsec.verify.compare import first_difference
from sparsec.verify.property import Found, Property, Untried, Violation

TOLERANCE = 5e-5  # float32 in another order, through sums over a hundred tokens


def _check(target: str, case: Case) -> Found:
    for inputs in case.traces:
        found = first_difference(case.reference(inputs).steps, case.run(target, inputs).steps, TOLERANCE)
        if found is None:
            continue
        if found.choice and not case.stable(inputs):
            yield Untried("two rows tie within rounding")
            continue
        message = f"the {target} target does not do what the oracle does: {found.what}"
        yield Violation(message, inputs, found.step, found.layer, found.head, case.line_of(found))


PROPERTIES = tuple(Property("interpreter equals target", target, partial(_check, target)) for target in ("torch", "triton"))
