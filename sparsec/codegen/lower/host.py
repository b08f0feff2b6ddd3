"""Static and counting expressions as Python text for the host: guards over layers, ranges and defaults of params."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparsec.codegen.lower.scope import Names
from sparsec.codegen.unsupported import unsupported
from sparsec.dsl import tree as t
from sparsec.dsl.fold import truth
from sparsec.dsl.names import FACTS

_LEVELS = {
    "or": 1, "implies": 1, "and": 2, "==": 4, "!=": 4, "<": 4, "<=": 4, ">": 4, ">=": 4, "in": 4, "not in": 4,
    "|": 5, "&": 7, "+": 8, "-": 8, "*": 9, "/": 9, "//": 9, "%": 9,
}  # fmt: skip
_CALLS = {"min": "min", "max": "max", "abs": "abs", "round": "round"}


@dataclass(frozen=True, slots=True)
class Where:
    """What names mean: `known` maps a name to Python text and wins over params and facts."""

    names: Names
    known: Mapping[str, str] = field(default_factory=dict)


def text(expr: t.Expr, where: Where) -> str:
    return _text(expr, where)[0]


def _text(expr: t.Expr, where: Where) -> tuple[str, int]:
    """The text and how tightly its outermost operator binds (10 is an atom)."""
    match expr:
        case t.Int() | t.Float():
            return str(expr.value), 10
        case t.SetLiteral():
            return "{" + ", ".join(text(item, where) for item in expr.items) + "}", 10
        case t.Unary():
            inner = _wrapped(expr.operand, where, 3 if expr.op == "not" else 10)
            return (f"not {inner}", 3) if expr.op == "not" else (f"-{inner}", 9)
        case t.Binary(op="implies"):
            return f"not {_wrapped(expr.left, where, 4)} or {_wrapped(expr.right, where, 2)}", 1
        case t.Binary():
            level = _LEVELS[expr.op]
            return f"{_wrapped(expr.left, where, level)} {expr.op} {_wrapped(expr.right, where, level + 1)}", level
        case t.Call():
            return _call(expr, where)
        case t.Ref():
            return _ref(expr, where), 10
    unsupported("this expression on the host", expr.span, "use arithmetic over params, `layer` and model facts", "S911")


def _wrapped(expr: t.Expr, where: Where, least: int) -> str:
    inner, level = _text(expr, where)
    return inner if level >= least else f"({inner})"


def _call(expr: t.Call, where: Where) -> tuple[str, int]:
    name = expr.name.text
    if name == "rows":
        part = expr.args[1].name.text if len(expr.args) > 1 else "K"
        return f'rows["{expr.args[0].name.text}", "{part}"]', 10
    args = [text(arg, where) for arg in expr.args]
    if name == "where":
        condition, yes, no = (_wrapped(arg, where, 1) for arg in expr.args)
        return f"{yes} if {condition} else {no}", 0
    if name in ("pages", "pages_for", "tokens"):
        size, inner = _page_size(where), _wrapped(expr.args[0], where, 9)
        return {"pages": (f"{inner} // {size}", 9), "pages_for": (f"-(-{inner} // {size})", 9), "tokens": (f"{inner} * {size}", 9)}[name]
    if name in ("floor", "ceil"):
        sign = "-" if name == "ceil" else ""
        return f"{sign}int({sign}{_wrapped(expr.args[0], where, 10 if sign else 9)} // 1)", 9 if sign else 10
    if name == "sqrt":
        return f"{_wrapped(expr.args[0], where, 10)} ** 0.5", 10
    if name not in _CALLS:
        unsupported(f"`{name}(...)` on the host", expr.span, "use arithmetic over params, `layer` and model facts", "S911")
    return f"{_CALLS[name]}({', '.join(args)})", 10


def _page_size(where: Where) -> str:
    size = where.names.page_size
    assert size is not None, "a method that counts pages declares their size (S704)"
    return str(size)


def _ref(expr: t.Ref, where: Where) -> str:
    name = expr.name.text
    if name == "page_size":
        return _page_size(where)
    known = truth(expr)
    if known is not None:
        return str(known)
    if name in where.known:
        return where.known[name] + "".join(f"[{text(index, where)}]" for index in expr.indices)
    if name in where.names.layers:
        return f"({text(where.names.layers[name].value, where)})"
    if name in where.names.params:
        return f'params["{name}"]'
    if name == "layer":
        return "layer"
    if name in FACTS and FACTS[name].model:
        return f'model["{name}"]'
    unsupported(f"`{name}` on the host", expr.span, "use params, `layer` and model facts", "S911")
