"""The value of a static guard at one layer, with the params at their defaults.

Knows numbers, booleans, choice words and sets of layers. Raises Undecided for everything that needs a model that is
not given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context

Value = int | float | bool | str | frozenset
_DEPTH = 100  # nested expressions, those of declarations included


class Undecided(Exception):
    """The value depends on something that is not known here."""


_OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
    "|": lambda a, b: a | b,
    "&": lambda a, b: a & b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "implies": lambda a, b: not a or b,
}
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "min": min,
    "max": max,
    "floor": lambda x: int(x // 1),
    "ceil": lambda x: -int(-x // 1),
    "round": round,
    "where": lambda condition, left, right: left if condition else right,
}


def layer_value(expr: t.Expr, layer: int, ctx: Context) -> Value:
    """Evaluate a static expression at one layer."""
    return _Evaluator(layer, ctx).value(expr, 0)


@dataclass(slots=True)
class _Evaluator:
    """`known`: values of names at this layer; None while a name is being evaluated, so that a cycle ends."""

    layer: int
    ctx: Context
    known: dict[str, Value | None] = field(default_factory=dict)

    def value(self, expr: t.Expr, depth: int) -> Value:
        if depth > _DEPTH:
            raise Undecided
        match expr:
            case t.Int(value=value):
                return value
            case t.Float():
                return expr.value
            case t.Ref(indices=()):
                return self._named(expr, depth + 1)
            case t.SetLiteral(items=items):
                return frozenset(self.value(item, depth + 1) for item in items)
            case t.Unary(op="not", operand=operand):
                return not self.value(operand, depth + 1)
            case t.Unary(operand=operand):
                return -self.value(operand, depth + 1)
            case t.Binary(op=op, left=left, right=right) if op in _OPERATORS:
                return _apply(_OPERATORS[op], (self.value(left, depth + 1), self.value(right, depth + 1)))
            case t.Call(name=name, args=args) if name.text in _FUNCTIONS:
                return _apply(_FUNCTIONS[name.text], tuple(self.value(arg, depth + 1) for arg in args))
        raise Undecided

    def _named(self, ref: t.Ref, depth: int) -> Value:
        name = ref.name.text
        if name in ("true", "false"):
            return name == "true"
        if name == "layer":
            return self.layer
        if self.ctx.model is not None and name in self.ctx.model:
            return self.ctx.model[name]
        if name not in self.known:
            self.known[name] = None
            self.known[name] = self._declared(ref, depth)
        if self.known[name] is None:
            raise Undecided
        return self.known[name]

    def _declared(self, ref: t.Ref, depth: int) -> Value:
        symbol = self.ctx.symbol_of(ref) or self.ctx.symbols.get(ref.name.text)
        if symbol is None:
            raise Undecided
        if symbol.kind == "choice_value":
            return symbol.name
        if isinstance(symbol.item, t.Param):
            return self.value(symbol.item.default, depth)
        if isinstance(symbol.item, t.Layers):
            return self.value(symbol.item.value, depth)
        raise Undecided


def _apply(function: Callable[..., Value], values: tuple[Value, ...]) -> Value:
    """A spec with a type error or a division by zero has been reported elsewhere: it has no value here."""
    try:
        return function(*values)
    except (TypeError, ZeroDivisionError, OverflowError, ValueError):
        raise Undecided from None
