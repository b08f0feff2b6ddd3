"""With sizes so large that no bound bites, a method is dense attention.

Tokens and pages params are set to the whole length. Where that is not dense, a size may work the other way round (rows to drop), and a
ratio may be a share of the rows: those are tried too, one by one, before the property fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from sparsec.dsl import tree as t
from sparsec.dsl.specialise import static_params
from sparsec.reference.values import Scalar
from sparsec.verify.case import Case
from sparsec.verify.dense import dense_attention
from sparsec.verify.oracle import Step
from sparsec.verify.params import largest
from sparsec.verify.property import Found, Property, Untried, Violation
from sparsec.verify.spec import lossy_stores, statements, unbounded_by
from sparsec.verify.traces import Inputs

TOLERANCE = 1e-5
SIZES = ("tokens", "pages")


def _skip(case: Case) -> str | None:
    stores = lossy_stores(case.method)
    if stores and statements(case.method, t.Move):
        return f"zones store K or V rounded (line {stores[0].span.line}): no size makes that exact"
    growing = frozenset(_growing(case))
    compiled_in = growing & static_params(case.method)  # the specialised method no longer names these
    fixed = unbounded_by(case.method if compiled_in else case.special, growing)
    if fixed is not None:
        return f"the rows of line {fixed.span.line} are bounded by numbers that no size param raises"
    return None


def check_on(target: str, case: Case) -> Found:
    for inputs in case.traces:
        failures = []
        for sizes in _settings(case, inputs.tokens):
            large = case.resized(sizes)
            if large is None:
                continue
            failure = _difference(large, inputs, target, sizes)
            if failure is None:
                break
            failures.append(failure)
        else:
            yield failures[0] if failures else Untried("no size param reaches the length of the trace")


def _growing(case: Case) -> list[str]:
    return [name for name, unit in case.units.items() if unit in (*SIZES, "ratio") and name != "page_size"]


def _settings(case: Case, tokens: int) -> Iterator[dict[str, Scalar]]:
    """Which params to set to what: all sizes large first."""
    large: dict[str, Scalar] = {}
    for name, unit in case.units.items():
        if unit in SIZES and name != "page_size":
            size = largest(case.range_of(name, large), tokens + 1)
            if size is not None:
                large[name] = size
    yield large
    ratios = [name for name, unit in case.units.items() if unit == "ratio"]
    ends: list[dict[str, Scalar]] = []
    for end in ("high", "low"):
        found = {name: getattr(case.range_of(name, large), end) for name in ratios}
        ends.append({name: value for name, value in found.items() if value is not None})
    yield from (large | end for end in ends if end)
    for name in large:
        yield {other: size for other, size in large.items() if other != name}


def _difference(case: Case, inputs: Inputs, target: str, sizes: dict[str, Scalar]) -> Violation | None:
    expected = dense_attention(inputs)
    for number, step in enumerate(case.run(target, inputs, None).steps):
        for layer, out in enumerate(step.out):
            end = inputs.prompt_len + number
            wanted = expected[layer, end - out.shape[0] : end]
            error = float((out - wanted).abs().max())
            if not error <= TOLERANCE * max(1.0, float(wanted.abs().max())):
                head = int((out - wanted).abs().amax((0, 2)).argmax())
                large = ", ".join(f"{name}={value}" for name, value in sizes.items()) or "no size params"
                message = f"with {large} attention is not dense: outputs differ by {error:.2g}"
                return Violation(message, inputs, number, layer, head, _line(case, step, layer))
    return None


def _line(case: Case, step: Step, layer: int) -> int:
    """The eviction, if rows were dropped; else the selection."""
    dropped = not bool(torch.all(step.kept[layer]))
    return case.acting_line((t.Evict, t.Attend) if dropped else (t.Attend, t.Evict))


PROPERTIES = tuple(Property("dense limit", target, partial(check_on, target), _skip) for target in ("reference", "torch"))
