"""The kept sets are the same however the prompt is chunked."""

from __future__ import annotations

from functools import partial

import torch

from sparsec.dsl import tree as t
from sparsec.verify.case import Case
from sparsec.verify.oracle import Step
from sparsec.verify.property import Found, Property, Untried, Violation
from sparsec.verify.traces import Inputs

CHUNKS = (1, 3, 7, 64)
DECODE_STEPS = 6  # after the prompt the runs are the same function of the same rows; a few steps show a state that differs


def _skip(case: Case) -> str | None:
    if case.chunk_invariance == "no":
        return "neither declared nor derived: the kept sets may depend on the chunk size"
    return None


def _check(target: str, case: Case) -> Found:
    for inputs in case.traces:
        short = inputs.first(inputs.prompt_len + DECODE_STEPS)
        if inputs.prompt_len == 1:
            yield Untried("a prompt of one token has one chunking")
            continue
        whole = case.run(target, short, None).steps
        found = None
        for chunk in (size for size in CHUNKS if size < inputs.prompt_len):
            found = found or _difference(target, case, short, whole, chunk)
        if found is None:
            continue
        yield found if case.stable(short) else Untried("two rows tie within rounding")


def _difference(target: str, case: Case, inputs: Inputs, whole: list[Step], chunk: int) -> Violation | None:
    for number, (one, other) in enumerate(zip(whole, case.run(target, inputs, chunk).steps, strict=True)):
        for layer, (kept, also) in enumerate(zip(one.kept, other.kept, strict=True)):
            if not torch.equal(kept, also):
                head = int((kept != also).any(1).nonzero()[0])
                rows = (kept[head] != also[head]).nonzero().flatten().tolist()
                message = f"chunks of {chunk} keep other rows than one chunk of the whole prompt: they differ at positions {_list(rows)}"
                return Violation(message, inputs, number, layer, head, _line(case), chunk)
    return None


def _line(case: Case) -> int | None:
    declared = case.method.of(t.Invariant)
    return declared[0].span.line if declared else None


def _list(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:6])) + (", ..." if len(rows) > 6 else "")


PROPERTIES = tuple(Property("invariant chunks", target, partial(_check, target), _skip) for target in ("reference", "torch"))
