"""Where an expression is evaluated: a layer of a step, with the rows, queries, lets and binders in force there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference.program import Program
from sparsec.reference.rows import Rows
from sparsec.reference.values import Term, Value


@dataclass(frozen=True, slots=True, eq=False)
class QueryBlock:
    """Queries by position [query]; `attended` is the mask of the attention just done, None for a window that is recomputed."""

    positions: Tensor
    attended: Value | None = None


class Storage(Protocol):
    """What a moment reads from the sequence."""

    def read(self, part: str, layer: int) -> Tensor: ...

    def keys_before_rope(self, layer: int, where: str) -> Tensor: ...

    def rotate(self, x: Value, positions: Value, where: str) -> Value: ...

    def queries(self, layer: int, positions: Tensor, where: str) -> Tensor: ...

    def state(self, name: str, at: Moment) -> Term: ...

    def stored(self, name: str, layer: int) -> Value: ...

    def window(self, count: int) -> QueryBlock: ...


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """`hook` names the place for messages. `selecting`: positional sets are relative to each query. `part`: what zone names mean.

    `builders` are the rows that positional sets count: the rows held, or in an `ensure` over `kept` the rows before finish_step.
    """

    program: Program
    storage: Storage
    layer: int
    rows: Rows
    builders: Rows
    hook: str
    facts: dict[str, Term]
    block: QueryBlock | None = None
    selecting: bool = False
    part: str | None = None
    member: str = "t"
    lets: dict[str, tuple[tuple[str, ...], Term]] = field(default_factory=dict)
    sets: dict[str, Value] = field(default_factory=dict)  # kept, attended
    expecting: tuple[str, ...] = ("t",)  # the base of `all` and `none`
    slack: float = 0.0  # by how much comparisons of real numbers may miss, relative to 1 + |right|: rounding in an `ensure`
    judging: bool = False  # in an `ensure`: logits are also of rows that an `attend` left out
    cache: dict[tuple, Term] = field(default_factory=dict)  # scores of a query block, for these rows

    def with_rows(self, rows: Rows) -> Moment:
        return replace(self, rows=rows, builders=rows, cache={})

    def counting(self, letter: str) -> Moment:
        """Sets built from here on range over this letter."""
        return replace(self, member=letter, expecting=(letter,))

    def observing(self, block: QueryBlock) -> Moment:
        return replace(self, block=block)

    def letter_names(self) -> frozenset[str]:
        return _BUILTIN_LETTERS | frozenset(self.program.domains)

    def where(self, node: t.Node) -> str:
        return f"{self.hook}, line {node.span.line}"


_BUILTIN_LETTERS = frozenset("itsphgcdlxy")
