"""Types of `+ - * / // %`, comparisons, membership and logic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparsec.dsl import domains, scopes, units
from sparsec.dsl import tree as t
from sparsec.dsl.checked import UNKNOWN, Symbol, Type
from sparsec.dsl.scopes import Scope
from sparsec.dsl.units import Unit

if TYPE_CHECKING:
    from sparsec.dsl.types import Typer

_LOGIC = frozenset({"and", "or", "implies"})
_COMPARE = frozenset({"<", "<=", ">", ">=", "==", "!="})
_SETS = ("set", "zone", "layer_set")
_UNIT_RULES: dict[str, Callable[[Unit, Unit], Unit]] = {
    "+": units.join,
    "-": units.join,
    "%": units.join,
    "*": units.times,
    "/": units.divided,
    "//": units.floor_divided,
}


def infer_unary(typer: Typer, expr: t.Unary, scope: Scope) -> Type:
    if expr.op == "not":
        return typer.infer_bool(expr.operand, scope)
    found = typer.infer_number(expr.operand, scope)
    if found.kind == "unknown":
        return UNKNOWN
    return typer.number(expr, typer.unit_of(expr.operand), found.free, found.static)


def infer_binary(typer: Typer, expr: t.Binary, scope: Scope) -> Type:
    if expr.op in _LOGIC:
        return _combined(typer.infer_bool(expr.left, scope), typer.infer_bool(expr.right, scope))
    if expr.op in ("in", "not in"):
        return _membership(typer, expr, scope)
    if expr.op in ("|", "&"):
        return typer.combine(expr, typer.infer_set(expr.left, scope), typer.infer_set(expr.right, scope))
    if expr.op in ("==", "!="):
        chosen = _choice_comparison(typer, expr)
        if chosen is not None:
            return chosen
        if _with_unknown(typer, expr, scope):
            return UNKNOWN
    left, right = typer.infer(expr.left, scope), typer.infer(expr.right, scope)
    if expr.op == "-" and (left.kind in _SETS or right.kind in _SETS):
        return typer.combine(expr, typer.infer_set(expr.left, scope), typer.infer_set(expr.right, scope))
    if expr.op in ("==", "!=") and left.kind == right.kind and left.kind in ("bool", "layer_set"):
        return _combined(left, right)
    left, right = typer.want(expr.left, left, "number"), typer.want(expr.right, right, "number")
    return _arithmetic(typer, expr, left, right)


def _combined(left: Type, right: Type) -> Type:
    if "unknown" in (left.kind, right.kind):
        return UNKNOWN
    return Type("bool", left.free | right.free, static=left.static and right.static)


def _arithmetic(typer: Typer, expr: t.Binary, left: Type, right: Type) -> Type:
    if "unknown" in (left.kind, right.kind):
        return UNKNOWN
    a, b = typer.unit_of(expr.left), typer.unit_of(expr.right)
    if expr.op in ("+", "-", "%") or expr.op in _COMPARE:
        if not check_units(typer, expr, a, b, _verb(expr.op)):
            return UNKNOWN
    if expr.op in _COMPARE:
        return _combined(left, right)
    if expr.op in ("/", "//", "%") and isinstance(expr.right, (t.Int, t.Float)) and expr.right.value == 0:
        typer.ctx.report("S307", expr.right, "division by zero", "divide by something that is never 0, e.g. `max(1, x)`")
        return UNKNOWN
    return typer.number(expr, _UNIT_RULES[expr.op](a, b), left.free | right.free, left.static and right.static)


def _verb(op: str) -> str:
    return {"+": "added to", "-": "subtracted from", "%": "a remainder of"}.get(op, "compared with")


def check_units(typer: Typer, where: t.Expr, a: Unit, b: Unit, verb: str) -> bool:
    """Report S302 where two dimensions do not meet."""
    if units.compatible(a, b):
        return True
    first, second = (b, a) if verb == "subtracted from" else (a, b)
    help = "convert one side"
    if {a.dim, b.dim} == {"tokens", "pages"}:
        help = "convert with `pages(n)` (rounds down), `pages_for(n)` (up) or `tokens(p)`"
    elif "ratio" in (a.dim, b.dim):
        other = a.dim if b.dim == "ratio" else b.dim
        help = f"a ratio scales a number of {other}: multiply, as in `round(share * n)`"
    one, other = ("a ratio" if unit.dim == "ratio" else unit.dim for unit in (first, second))
    typer.ctx.report("S302", where, f"{one} cannot be {verb} {other}", help)
    return False


# ---- membership and choices ----------------------------------------------------------------------


def _membership(typer: Typer, expr: t.Binary, scope: Scope) -> Type:
    """`layer in filters`, `c in live[h]`, `recent(n) in kept`."""
    right = typer.infer_set(expr.right, scope)
    left = typer.infer(expr.left, scope)
    if "unknown" in (left.kind, right.kind):
        return UNKNOWN
    static = left.static and right.static
    if left.kind in _SETS and right.kind in _SETS:
        base = typer.common_base(left.base, right.base)
        if base is None:
            message = f"a set over {scopes.listed(left.base)} is never inside one over {scopes.listed(right.base)}"
            typer.ctx.report("S212", expr, message, "both sides of `in` must range over the same things")
            return UNKNOWN
        for side in (expr.left, expr.right):
            typer.settle(side, base)
        return Type("bool", left.free | right.free, static=static)
    if left.kind != "number":
        return typer.mismatch(expr.left, left, "a number or a set")
    if right.kind == "layer_set":
        return _layer_member(typer, expr, left, right)
    letter = domains.letter_of(typer.ctx, expr.left)
    if letter is None or right.base and (len(right.base) != 1 or not domains.same_domain(typer.ctx, letter, right.base[0])):
        message = f"only an index letter of {scopes.listed(right.base)} can be a member of this set"
        typer.ctx.report("S209", expr.left, message, "write e.g. `t in S`")
        return UNKNOWN
    typer.settle(expr.right, (letter,))
    return Type("bool", left.free | right.free)


def _layer_member(typer: Typer, expr: t.Binary, left: Type, right: Type) -> Type:
    letter = domains.letter_of(typer.ctx, expr.left)
    if letter is not None and typer.ctx.letters[letter] != "layer":
        message = f"`{letter}` ranges over {typer.ctx.letters[letter]}, but this is a set of layers"
        typer.ctx.report("S209", expr.left, message, "use `layer` or the letter `l`")
        return UNKNOWN
    return Type("bool", left.free | right.free, static=left.static and right.static)


def _choice_comparison(typer: Typer, expr: t.Binary) -> Type | None:
    """`heads == each`: one side is a choice param, the other one of its values. None for other comparisons."""
    for param, value in ((expr.left, expr.right), (expr.right, expr.left)):
        item = choice_item(typer, param)
        if item is None:
            continue
        symbol = typer.ctx.symbols[item.name.text]
        typer.ctx.bindings[id(param)] = symbol
        typer.ctx.types[id(param)] = Type("choice", static=True)
        if not check_choice_value(typer, item, value):
            return UNKNOWN
        return Type("bool", static=True)
    return None


def _with_unknown(typer: Typer, expr: t.Binary, scope: Scope) -> bool:
    """Whether an unknown name is compared with a value of some choice, which it may have meant."""
    for param, value in ((expr.left, expr.right), (expr.right, expr.left)):
        word = domains.bare(value)
        if word is None or domains.bare(param) is None or word in scope.lets or word in typer.ctx.symbols:
            continue
        if scopes.choice_with(typer.ctx, word) is not None and typer.infer(param, scope).kind == "unknown":
            typer.ctx.types[id(value)] = UNKNOWN
            return True
    return False


def choice_item(typer: Typer, expr: t.Expr) -> t.Param | None:
    symbol = typer.ctx.symbols.get(domains.bare(expr) or "")
    item = symbol.item if symbol is not None else None
    return item if isinstance(item, t.Param) and item.unit.text == "choice" else None


def check_choice_value(typer: Typer, item: t.Param, value: t.Expr) -> bool:
    """Is `value` one of the names of the choice? Records its type, or reports S115."""
    known = scopes.choices(item)
    typer.ctx.types[id(value)] = Type("choice", static=True)
    name = domains.bare(value)
    if name is not None and name in known:
        typer.ctx.bindings[id(value)] = Symbol(name, "choice_value", (), item)
        return True
    if known:
        listed = f"values of `{item.name}`: {', '.join(known)}"
        help, fixes = scopes.suggestion(typer.ctx, value.name, known, listed) if name is not None else (listed, ())
        what = f"`{name}`" if name is not None else "this"
        typer.ctx.report("S115", value, f"{what} is not a value of the choice `{item.name}`", help, fixes)
    return False
