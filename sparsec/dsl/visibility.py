"""Does a read set provably hold the query's own row?

Two questions over set expressions, both answered "no" where nothing can be proven: `holds_own` (the row is in the set)
and `lacks_own` (the row is not in it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.static import provably_leq

_DEPTH = 100  # nested expressions, those of lets included
_ALWAYS = frozenset({"all", "open_page"})
_ONE = t.Int(1)


def holds_own(expr: t.Expr, ctx: Context, newest: str | None) -> bool:
    """`newest` names the zone that holds the step's new rows, or is None where that may be any."""
    return _Visibility(ctx, newest).holds(expr, 0)


def lacks_own(expr: t.Expr, ctx: Context, newest: str | None) -> bool:
    """True where the set provably leaves out the query's own row."""
    return _Visibility(ctx, newest).lacks(expr, 0)


@dataclass(slots=True)
class _Visibility:
    """`known`: answers already given, by question and expression; False while a question is open."""

    ctx: Context
    newest: str | None
    known: dict[tuple[str, int], bool] = field(default_factory=dict)

    def holds(self, expr: t.Expr, depth: int) -> bool:
        return self._answer("holds", self._holds, expr, depth)

    def lacks(self, expr: t.Expr, depth: int) -> bool:
        return self._answer("lacks", self._lacks, expr, depth)

    def _answer(self, question: str, ask: Callable[[t.Expr, int], bool], expr: t.Expr, depth: int) -> bool:
        key = (question, id(expr))
        if key not in self.known:
            self.known[key] = False
            self.known[key] = depth < _DEPTH and ask(expr, depth + 1)
        return self.known[key]

    def _holds(self, expr: t.Expr, depth: int) -> bool:
        match expr:
            case t.Ref() if (value := self.ctx.let_value(expr)) is not None:
                return self.holds(value, depth)
            case t.Ref(name=name):
                return name.text in _ALWAYS or name.text == self.newest
            case t.Call(name=t.Ident(text="recent"), args=(count,)):
                return provably_leq(_ONE, count, self.ctx)
            case t.Call(name=t.Ident(text="itself")):
                return True
            case t.Call(name=t.Ident(text="every"), args=(t.Int(value=1),)):
                return True
            case t.Binary(op="|", left=left, right=right):
                return self.holds(left, depth) or self.holds(right, depth)
            case t.Binary(op="-", left=left, right=right):
                return self.holds(left, depth) and self.lacks(right, depth)
            case t.Binary(op="&", left=left, right=right) | t.Call(name=t.Ident(text="where"), args=(_, left, right)):
                return self.holds(left, depth) and self.holds(right, depth)
        return False

    def _lacks(self, expr: t.Expr, depth: int) -> bool:
        match expr:
            case t.Ref() if (value := self.ctx.let_value(expr)) is not None:
                return self.lacks(value, depth)
            case t.Ref(name=name):
                is_zone = self.ctx.type_of(expr).kind == "zone"
                return name.text == "none" or (is_zone and self.newest not in (None, name.text))
            case t.Reduce(op=t.Ident(text="top" | "bottom" | "nucleus" | "filter"), binders=binders):
                return any(b.within is not None and self.lacks(b.within, depth) for b in binders)
            case t.Binary(op="&", left=left, right=right):
                return self.lacks(left, depth) or self.lacks(right, depth)
            case t.Binary(op="-", left=left, right=right):
                return self.lacks(left, depth) or self.holds(right, depth)
            case t.Binary(op="|", left=left, right=right) | t.Call(name=t.Ident(text="where"), args=(_, left, right)):
                return self.lacks(left, depth) and self.lacks(right, depth)
        return False
