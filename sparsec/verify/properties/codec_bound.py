"""What a zone stores in codes comes back within half a step: |x - x^| <= s / 2 and rounding, group by group."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.verify.case import Case
from sparsec.verify.oracle import Codes
from sparsec.verify.property import Found, Property, Untried, Violation
from sparsec.verify.spec import lossy_stores
from sparsec.verify.traces import Inputs

ROUNDING = 1e-5  # of codes times scale plus minimum in float32, relative to the largest value


def _skip(case: Case) -> str | None:
    return None if any(_is_codes(store) for store in lossy_stores(case.method)) else "no zone stores integer codes"


def _is_codes(store: t.Store) -> bool:
    return store.dtype.name.text == "int"


def _check(case: Case) -> Found:
    for inputs in case.traces:
        entered = case.reference(inputs).codes
        if not entered:
            yield Untried("no row entered the zone that stores codes")
        for codes in entered:
            found = _outside(codes, inputs)
            if found is not None:
                yield found
                break


def _outside(codes: Codes, inputs: Inputs) -> Violation | None:
    """Compares rows [token, channel] of one head with what the store returns for them."""
    allowed = codes.scale / 2 + ROUNDING * _largest(codes.exact)
    error = (codes.exact - codes.decoded).abs()
    if bool((error <= allowed).all()):
        return None
    worst = int((error - allowed).argmax())
    row, channel = divmod(worst, error.shape[1])
    message = (
        f"{codes.store} returns the row at position {int(codes.positions[row])} with an error of {float(error[row, channel]):.3g} "
        f"in channel {channel}, and half a step is {float(codes.scale[row, channel]) / 2:.3g}"
    )
    return Violation(message, inputs, inputs.new, codes.layer, codes.head, codes.line)


def _largest(exact: Tensor) -> float:
    return float(torch.max(exact.abs()))


PROPERTY = Property("codec round trip", "reference", _check, _skip)
