"""A sequence in a batch gives what it gives alone: ragged lengths, sequences that join and leave, one that is given up, each with its
own params."""

from __future__ import annotations

from sparsec.reference.values import Scalar
from sparsec.verify.case import Case
from sparsec.verify.compare import first_difference
from sparsec.verify.machine import Feed, Machine
from sparsec.verify.oracle import Run
from sparsec.verify.property import Found, Property, Untried, Violation
from sparsec.verify.traces import Inputs

TOLERANCE = 1e-5
BETWEEN = 2  # decode steps of those who are there before the next one joins


def _check(case: Case) -> Found:
    params = [case.request_params, case.variant(1), case.variant(2)]
    feeds = case.guarded("torch", case.traces[-1], lambda: _together(case, params))
    for feed, mine in zip(feeds, params, strict=True):
        alone = _alone(case, feed.inputs, mine)
        found = first_difference(alone.steps, feed.steps, TOLERANCE)
        if found is None:
            continue
        if found.choice and not case.stable(feed.inputs):
            yield Untried("two rows tie within rounding")
            continue
        message = f"in a batch with {len(feeds) - 1} others the sequence differs from itself alone: {found.what}"
        yield Violation(message, feed.inputs, found.step, found.layer, found.head, case.line_of(found), params={**case.params, **mine})


def _alone(case: Case, inputs: Inputs, params: dict[str, Scalar]) -> Run:
    if params == case.request_params:
        return case.torch(inputs)
    return case.guarded("torch", inputs, lambda: case.machine().run(inputs, params))


def _together(case: Case, params: list[dict[str, Scalar]]) -> list[Feed]:
    """All traces on one machine; each joins while the others decode, one more is given up on the way."""
    machine = case.machine()
    feeds: list[Feed] = []
    for inputs, mine in zip(case.traces, params, strict=True):
        feed = machine.open(inputs, mine)
        machine.prefill(feed)
        feeds.append(feed)
        for _ in range(BETWEEN):
            _decode(machine, feeds)
    guest = machine.open(case.traces[0], params[0])
    machine.prefill(guest)
    _decode(machine, [guest, *feeds])
    machine.close(guest)
    while any(not feed.over for feed in feeds):
        _decode(machine, feeds)
    for feed in feeds:
        machine.close(feed)
    return feeds


def _decode(machine: Machine, feeds: list[Feed]) -> None:
    live = [feed for feed in feeds if not feed.over]
    if live:
        machine.decode(live)


PROPERTY = Property("batch equals single", "torch", _check)
