"""The target can be built for the drawn params: without it, the properties of that target say nothing."""

from __future__ import annotations

from sparsec.verify.case import Case, NotBuilt
from sparsec.verify.property import Found, Property, Violation


def _check(case: Case) -> Found:
    try:
        assert case.request_params.keys() <= case.params.keys(), "a request gives params of the method"
    except NotBuilt as error:
        yield Violation(str(error), case.traces[0])


PROPERTY = Property("compiles", "torch", _check)
