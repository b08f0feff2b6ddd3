"""What a property is: a name, when it does not apply, and a check that yields what it finds on the traces of one case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsec.reference.values import Scalar
from sparsec.verify.traces import Inputs

if TYPE_CHECKING:
    from sparsec.verify.case import Case


@dataclass(frozen=True, slots=True, eq=False)
class Violation:
    """A trace on which a property does not hold. `line`: the line of the spec that promises it, or the most telling one."""

    message: str
    inputs: Inputs
    step: int | None = None
    layer: int | None = None
    head: int | None = None
    line: int | None = None
    chunk: int | None = None
    params: dict[str, Scalar] | None = None  # where they are not the case's own


@dataclass(frozen=True, slots=True, eq=False)
class Untried:
    """A trace that says nothing about the property, and why: it counts as no evidence."""

    reason: str


Found = Iterator[Violation | Untried]


@dataclass(frozen=True, slots=True)
class Property:
    """`target`: who runs it, "reference", "torch" or "triton". `skip(case)`: why it does not apply, or None. `check(case)` yields violations and
    untried traces; a trace of the case that it does not mention has passed."""

    name: str
    target: str
    check: Callable[[Case], Found]
    skip: Callable[[Case], str | None] = lambda case: None
