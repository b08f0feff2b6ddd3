"""Constant folding of one expression whose children are already folded. Exact: integers stay integers, ratios are left alone."""

from __future__ import annotations

from collections.abc import Callable

from sparsec.dsl import tree as t

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def truth(expr: t.Expr | None) -> bool | None:
    """The value of `true` and `false`; None for everything else."""
    if isinstance(expr, t.Ref) and not expr.indices and expr.name.text in ("true", "false"):
        return expr.name.text == "true"
    return None


def number(expr: t.Expr) -> int | float | None:
    """The value of a literal, a negated one included."""
    if isinstance(expr, t.Int | t.Float):
        return expr.value
    if isinstance(expr, t.Unary) and expr.op == "-":
        inner = number(expr.operand)
        return None if inner is None else -inner
    return None


def fold(expr: t.Expr) -> t.Expr:
    """An expression of the same meaning; itself where nothing is constant."""
    if isinstance(expr, t.Unary) and expr.op == "not":
        known = truth(expr.operand)
        return expr if known is None else _bool(not known, expr)
    if isinstance(expr, t.Call) and not expr.keywords:
        return _call(expr)
    if isinstance(expr, t.Binary):
        return _logic(expr) if expr.op in ("and", "or", "implies", "==", "!=") else _binary(expr)
    return expr


def _bool(value: bool, at: t.Expr) -> t.Expr:
    return t.Ref(t.Ident("true" if value else "false", span=at.span), span=at.span)


def _integer(value: int, at: t.Expr) -> t.Expr:
    literal = t.Int(abs(value), span=at.span)
    return t.Unary("-", literal, span=at.span) if value < 0 else literal


def _call(expr: t.Call) -> t.Expr:
    if expr.name.text == "where" and len(expr.args) == 3:
        known = truth(expr.args[0])
        return expr if known is None else expr.args[1 if known else 2]
    values = [number(arg) for arg in expr.args]
    if expr.name.text in ("min", "max") and values and all(isinstance(v, int) for v in values):
        return _integer(min(values) if expr.name.text == "min" else max(values), expr)
    return expr


def _logic(expr: t.Binary) -> t.Expr:
    left, right = truth(expr.left), truth(expr.right)
    if expr.op in ("==", "!="):
        if left is not None and right is not None:
            return _bool((left == right) is (expr.op == "=="), expr)
        return _binary(expr)
    if expr.op == "implies":
        if left is False or right is True:
            return _bool(True, expr)
        return expr.right if left is True else expr
    neutral = expr.op == "and"  # `true and x` is x, `false or x` is x
    for known, other in ((left, expr.right), (right, expr.left)):
        if known is not None:
            return other if known is neutral else _bool(known, expr)
    return expr


def _binary(expr: t.Binary) -> t.Expr:
    left, right = number(expr.left), number(expr.right)
    if left is None or right is None:
        return expr
    if expr.op in _COMPARE:
        return _bool(_COMPARE[expr.op](left, right), expr)
    if not (isinstance(left, int) and isinstance(right, int)):
        return expr
    if expr.op in _ARITHMETIC:
        return _integer(_ARITHMETIC[expr.op](left, right), expr)
    if expr.op in ("//", "%") and right != 0:
        return _integer(left // right if expr.op == "//" else left % right, expr)
    return expr
