"""Count expressions made shorter for reading, with the same value for every legal request."""

from __future__ import annotations

from dataclasses import replace

from sparsec.dsl import tree as t
from sparsec.dsl.fold import fold
from sparsec.graph.text import text

LENGTHS = ("prompt", "new", "chunk", "total", "len")  # at least one of each in any request


class Simplifier:
    """Knows the least value of each name, so that `max(1, interval)` can become `interval`."""

    def __init__(self, params: dict[str, t.Param]) -> None:
        self._params = params
        self._least = {name: 1 for name in LENGTHS}
        for name in params:
            self._least[name] = self._low(name)

    def _low(self, name: str) -> int:
        """The declared lower bound where it is a number or an earlier param, else 0: counts are never negative."""
        bound = self._params[name].bound
        if bound is None or not bound.is_range:
            return 0
        if isinstance(bound.low, t.Int):
            return bound.low.value
        return self._least.get(bound.low.name.text, 0) if isinstance(bound.low, t.Ref) else 0

    def __call__(self, expr: t.Expr) -> t.Expr:
        match expr:
            case t.Binary():
                return self._binary(fold(replace(expr, left=self(expr.left), right=self(expr.right))))
            case t.Call() if expr.name.text in ("min", "max"):
                return self._extreme(expr)
            case t.Call():
                return replace(expr, args=tuple(self(arg) for arg in expr.args))
        return expr

    def at_most(self, small: t.Expr, large: t.Expr) -> bool:
        """Proven: small <= large, by linear terms, or because a multiple was rounded down."""
        match small:
            case t.Binary(op="*", left=t.Binary(op="//", left=inner, right=unit), right=again) if unit == again:
                return self.at_most(inner, large)
            case t.Call(name=word, args=args) if word.text == "min":
                return small == large or any(self.at_most(arg, large) for arg in args)
            case t.Call(name=word, args=args) if word.text == "max":
                return small == large or all(self.at_most(arg, large) for arg in args)
        return small == large or self._linear_at_most(small, large)

    def _linear_at_most(self, small: t.Expr, large: t.Expr) -> bool:
        difference = terms(large)
        for term, factor in terms(small).items():
            difference[term] = difference.get(term, 0) - factor
        constant = difference.pop("", 0)
        if any(factor < 0 for factor in difference.values()):
            return False
        return constant + sum(factor * self._least.get(term, 0) for term, factor in difference.items()) >= 0

    def _binary(self, expr: t.Expr) -> t.Expr:
        match expr:
            case t.Binary(op="-", left=left, right=t.Binary(op="*", left=t.Binary(op="//", left=inner, right=unit), right=again)):
                return t.Binary("%", left, unit) if left == inner and unit == again else expr
            case t.Binary(op="-", left=left, right=t.Call(name=word, args=(t.Int(value=0), t.Binary(op="-") as rest))):
                base, cut = _cut(rest)
                return t.Call(t.Ident("min"), (left, cut)) if word.text == "max" and left == base else expr
            case t.Binary(op="+" | "-"):
                return _linear(expr)
        return expr

    def _extreme(self, expr: t.Call) -> t.Expr:
        """Arguments that another one dominates are dropped."""
        smallest = expr.name.text == "min"
        kept = list(dict.fromkeys(self(arg) for arg in expr.args))
        if not smallest and t.Int(0) in kept:
            kept = [self._opened(arg) for arg in kept]
        for arg in tuple(kept):
            rest = [other for other in kept if other != arg]
            if any(self.at_most(other, arg) if smallest else self.at_most(arg, other) for other in rest):
                kept = rest
        return kept[0] if len(kept) == 1 else replace(expr, args=tuple(kept))


    def _opened(self, expr: t.Expr) -> t.Expr:
        """Beside 0 in a maximum, `max(0, a) - b` is `a - b`, since counts are never negative."""
        match expr:
            case t.Binary(op="-", left=t.Call(name=word, args=(t.Int(value=0), inner)), right=t.Ref() | t.Int()) if word.text == "max":
                return replace(expr, left=inner)
        return expr


def _cut(expr: t.Expr) -> tuple[t.Expr, t.Expr]:
    """(a, b + c) of `a - b - c`."""
    cut = expr.right
    expr = expr.left
    while isinstance(expr, t.Binary) and expr.op == "-":
        cut, expr = t.Binary("+", expr.right, cut), expr.left
    return expr, cut


def terms(expr: t.Expr) -> dict[str, int]:
    """The linear form of a sum: factor by term, "" for the constant."""
    match expr:
        case t.Int():
            return {"": expr.value}
        case t.Binary(op="+" | "-"):
            found = terms(expr.left)
            for term, factor in terms(expr.right).items():
                found[term] = found.get(term, 0) + (factor if expr.op == "+" else -factor)
            return {term: factor for term, factor in found.items() if factor}
    return {text(expr): 1}


def _linear(expr: t.Binary) -> t.Expr:
    """The sum with terms that cancel left out, where any do; otherwise as written."""
    leaves = _leaves(expr, 1)
    factors = terms(expr)
    single = all(abs(factors.get(text(leaf), 0)) == 1 for leaf, _ in leaves if not isinstance(leaf, t.Int))
    if single and sum(isinstance(leaf, t.Int) for leaf, _ in leaves) < 2:
        return expr
    left: t.Expr | None = None
    for leaf, _ in {text(leaf): (leaf, sign) for leaf, sign in leaves if not isinstance(leaf, t.Int)}.values():
        factor = factors.get(text(leaf), 0)
        if factor < 0 or factor > 1:
            return expr
        if factor:
            left = leaf if left is None else t.Binary("+", left, leaf)
    constant = factors.get("", 0)
    if left is None:
        return t.Int(constant) if constant >= 0 else expr
    if not constant:
        return left
    return t.Binary("+" if constant > 0 else "-", left, t.Int(abs(constant)))


def _leaves(expr: t.Expr, sign: int) -> list[tuple[t.Expr, int]]:
    if isinstance(expr, t.Binary) and expr.op in ("+", "-"):
        return _leaves(expr.left, sign) + _leaves(expr.right, sign if expr.op == "+" else -sign)
    return [(expr, sign)]
