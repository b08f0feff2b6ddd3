"""Runs every property of a method over seeds and folds what is found into one outcome per property."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from sparsec.verify.case import Case, Crash, NotRunnable
from sparsec.verify.properties import properties_of
from sparsec.verify.property import Property, Untried, Violation
from sparsec.verify.report import Outcome, Status, Where
from sparsec.verify.subject import Subject

TARGETS = ("reference", "torch")


@dataclass(slots=True)
class _Tally:
    """What the seeds so far say about one property; it ends at its first violation."""

    tried: int = 0
    reasons: list[str] = field(default_factory=list)
    violation: Violation | None = None
    line: int | None = None
    where: Where | None = None
    seed: int | None = None


def verify(subject: Subject, seeds: Sequence[int], targets: Sequence[str] = TARGETS) -> list[Outcome]:
    """One outcome per property, in a fixed order."""
    properties = [one for one in properties_of(subject.method) if one.target in targets]
    tallies = [_Tally() for _ in properties]
    with _one_thread():
        for seed in seeds:
            case = subject.case(seed)
            for one, tally in zip(properties, tallies, strict=True):
                if tally.violation is None:
                    _try(one, case, tally)
    return [_outcome(one, subject, tally) for one, tally in zip(properties, tallies, strict=True)]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors of a few kilobytes: a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _try(one: Property, case: Case, tally: _Tally) -> None:
    """Counts the traces that passed; keeps the first violation."""
    reason = one.skip(case)
    if reason is not None:
        tally.reasons.append(reason)
        return
    untried = 0
    for found in _findings(one, case):
        if isinstance(found, Violation):
            tally.tried += 1
            tally.violation, tally.where, tally.seed = found, case.where(found), case.seed
            tally.line = found.line if found.line is not None else case.acting_line()
            return
        tally.reasons.append(found.reason)
        untried += 1
    tally.tried += max(0, len(case.traces) - untried)


def _findings(one: Property, case: Case) -> list[Violation | Untried]:
    """All up to the first violation. A run that cannot be finished violates the property that needs it."""
    found: list[Violation | Untried] = []
    try:
        for finding in one.check(case):
            found.append(finding)
            if isinstance(finding, Violation):
                break
    except Crash as crash:
        found.append(Violation(f"the {crash.target} run failed: {crash}", crash.inputs, line=crash.line, chunk=crash.chunk))
    except NotRunnable as unknown:
        found.extend(Untried(str(unknown)) for _ in range(len(case.traces) - len(found)))
    return found


def _outcome(one: Property, subject: Subject, tally: _Tally) -> Outcome:
    if tally.violation is not None:
        broken = tally.violation
        return Outcome(
            one.name, subject.name, one.target, Status.FAILED, broken.message, tally.where, tally.line, tally.seed, tally.tried
        )
    if tally.tried:
        return Outcome(one.name, subject.name, one.target, Status.PASSED, traces=tally.tried)
    reason = "; ".join(dict.fromkeys(tally.reasons)) or "no trace was generated"
    return Outcome(one.name, subject.name, one.target, Status.SKIPPED, reason)
