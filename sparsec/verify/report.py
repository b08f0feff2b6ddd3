"""What a verification found: one outcome per property, as text for people or JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Where:
    """The trace of a failure: enough to build it again. `step` 0 is the prompt, s >= 1 the s-th decode step."""

    shape: str
    params: dict[str, object]
    inputs: str
    prompt_len: int
    new: int
    chunk: int
    step: int | None = None
    layer: int | None = None
    head: int | None = None

    def __str__(self) -> str:
        params = ", ".join(f"{name}={_plain(value)}" for name, value in self.params.items()) or "no params"
        places = (("step", self.step), ("layer", self.layer), ("head", self.head))
        place = "".join(f", {word} {at}" for word, at in places if at is not None)
        return f"{self.shape}; {params}; {self.inputs}, prompt {self.prompt_len}, {self.new} decode steps, chunk {self.chunk}{place}"

    def to_object(self) -> dict[str, object]:
        found = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return found | {"params": {name: _plain(value) for name, value in self.params.items()}}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One property of one method. `line` is the line of the spec that a failure names; `traces` counts those it was tried on."""

    property: str
    method: str
    target: str
    status: Status
    reason: str | None = None
    trace: Where | None = None
    line: int | None = None
    seed: int | None = None
    traces: int = 0

    @property
    def failed(self) -> bool:
        return self.status is Status.FAILED


def to_json(outcome: Outcome) -> str:
    """One line, keys in a fixed order."""
    found = {entry.name: getattr(outcome, entry.name) for entry in fields(outcome)}
    found["trace"] = outcome.trace.to_object() if outcome.trace is not None else None
    return json.dumps(found, ensure_ascii=False)


def to_text(outcome: Outcome, path: str) -> str:
    """One line, and for a failure what, where in the spec, and the trace that shows it."""
    head = f"{outcome.status.value:<8} {outcome.property}"
    if outcome.target != "reference":
        head += f" [{outcome.target}]"
    if outcome.status is Status.PASSED:
        return f"{head} ({outcome.traces} traces)"
    if outcome.status is Status.SKIPPED:
        return f"{head}: {outcome.reason}"
    place = f"{path}:{outcome.line}" if outcome.line is not None else path
    return "\n".join((f"{head}: {outcome.reason}", f"   --> {place}", f"    = seed {outcome.seed}: {outcome.trace}"))


def summary(method: str, outcomes: Iterable[Outcome]) -> str:
    """The last line for people."""
    counts = {status: 0 for status in Status}
    for outcome in outcomes:
        counts[outcome.status] += 1
    return f"{method}: " + ", ".join(f"{counts[status]} {status.value}" for status in Status)


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else value
