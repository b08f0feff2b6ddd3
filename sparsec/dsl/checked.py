"""What the checker attaches to a syntax tree: symbols, letters and the type of every expression.

Later stages read this and never re-derive it. Types are kept by node identity, since equal expressions may stand in
different scopes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsec.diagnostics import Diagnostic, Source
from sparsec.dsl import tree as t


@dataclass(frozen=True, slots=True)
class Type:
    """The static type of one expression.

    kind: "number", "bool", "set", "choice", "layer_set", "zone" or "unknown" (already reported).
    free: index letters that the value depends on, e.g. {"t", "h"} for `score[t, h]`; for a set, its granularity.
    base: for a set, the letters its members range over: ("t",), ("p",), ("t", "h"), ("l", "t", "h"), ("l",), ("c",).
    unit: tokens, pages, bytes, bits, int, ratio or None for a plain value.
    static: the value follows from params, `layer` and model facts alone.
    """

    kind: str
    free: frozenset[str] = frozenset()
    base: tuple[str, ...] = ()
    unit: str | None = None
    static: bool = False


UNKNOWN = Type("unknown")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A declared or built-in name. kind: param, domain, weight, layers, zone, state, summary, store, let, tensor, fact, ..."""

    name: str
    kind: str
    letters: tuple[str, ...] = ()
    item: t.Node | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A method that passed every check. `types` maps id(expression node) to its Type."""

    source: Source
    file: t.SparseFile
    symbols: dict[str, Symbol]
    letters: dict[str, str]  # letter -> domain name, declared domains included
    types: dict[int, Type]
    warnings: tuple[Diagnostic, ...] = field(default=())

    @property
    def method(self) -> t.Method:
        return self.file.method

    def type_of(self, expr: t.Expr) -> Type:
        return self.types[id(expr)]
