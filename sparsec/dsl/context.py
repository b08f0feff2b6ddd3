"""What one run of the checker knows and has found: symbols, types, and the diagnostics collected so far.

Every pass takes the same Context, reads what earlier passes attached and reports through it. A pass never stops at an
error: what failed has type UNKNOWN, and passes stay silent about UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sparsec.diagnostics import Diagnostic, Fix, Severity, Source
from sparsec.dsl import tree as t
from sparsec.dsl.checked import UNKNOWN, Symbol, Type

ModelFacts = Mapping[str, int | float]  # names of `names.FACTS` that are model facts, e.g. {"n_layers": 32}


@dataclass(slots=True)
class Context:
    """`bindings` maps id(Ref) to the symbol it resolved to, also for hook-local lets and index letters.

    `types[id(symbol.item.target)]` is the type of a let, state, summary or store as a whole: `free` holds its letters.
    """

    source: Source
    file: t.SparseFile
    model: ModelFacts | None = None
    strict: bool = True  # False for a specialised tree, whose values may have lost letters that were declared
    symbols: dict[str, Symbol] = field(default_factory=dict)
    letters: dict[str, str] = field(default_factory=dict)
    types: dict[int, Type] = field(default_factory=dict)
    bindings: dict[int, Symbol] = field(default_factory=dict)
    lets: dict[str, list[Symbol]] = field(default_factory=dict)  # every let of every hook, by name
    choices: dict[str, t.Param] | None = None  # the first choice param with each value; made when first asked for
    unknown_names: set[str] = field(default_factory=set)  # reported, and compared with the names that they may have meant
    comparisons: int = 0  # of unknown names with known ones, so far
    effort: int = 6_000  # steps that proofs may still take in this file
    _found: dict[tuple, Diagnostic] = field(default_factory=dict)

    @property
    def method(self) -> t.Method:
        return self.file.method

    def report(
        self,
        code: str,
        where: t.Node | t.Span,
        message: str,
        help: str | None = None,
        fixes: Iterable[Fix] = (),
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Collect one diagnostic; the same code and message at the same place is kept once."""
        span = where if isinstance(where, t.Span) else where.span
        found = Diagnostic(code, message, span, help, tuple(fixes), severity)
        self._found.setdefault((span.start, span.end, code, message), found)

    def type_of(self, expr: t.Expr) -> Type:
        """The type of an expression; UNKNOWN where an error was reported already."""
        return self.types.get(id(expr), UNKNOWN)

    def failed(self, node: t.Node) -> bool:
        """Whether something in the node could not be typed: that is reported, and nothing more is to be said of it."""
        return any(self._failed(part) for part in t.walk(node))

    def _failed(self, part: t.Node) -> bool:
        """Of a param, its range counts too: what is unknown there bounds nothing."""
        symbol = self.symbol_of(part) if isinstance(part, t.Ref) else None
        known = (part, *t.walk(symbol.item.bound)) if symbol is not None and _is_bounded(symbol.item) else (part,)
        return any(id(one) in self.types and self.types[id(one)].kind == "unknown" for one in known)

    def reported(self, *codes: str) -> bool:
        return any(found.code in codes for found in self._found.values())

    def symbol_of(self, ref: t.Ref) -> Symbol | None:
        """What a reference resolved to, or None where it did not."""
        return self.bindings.get(id(ref))

    def let_value(self, name: t.Ref | str) -> t.Expr | None:
        """The defining expression of a let: of the one a reference resolved to, or of the only one with that name."""
        if isinstance(name, t.Ref):
            symbol = self.symbol_of(name)
            return symbol.item.value if symbol is not None and isinstance(symbol.item, t.Let) else None
        known = self.lets.get(name, [])
        return known[0].item.value if len(known) == 1 else None

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All findings in source order."""
        return tuple(sorted(self._found.values(), key=lambda d: (d.span.start, d.span.end, d.code, d.message)))

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.severity is not Severity.ERROR)


def _is_bounded(item: t.Node | None) -> bool:
    return isinstance(item, t.Param) and item.bound is not None
