"""The `ensure` clauses of a method, prepared for the oracle: comparisons of real numbers allow for rounding, and each clause gets a twin
that tells when the clause was due.
"""

from __future__ import annotations

from dataclasses import replace

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked

ROUNDING = "0.00001"  # of float32 sums in another order: relative, and absolute where terms cancel
_FINITE = "1e30"  # infinities compare as they are
_TWIN = "due: "
_FALSE = t.Ref(t.Ident("false"))
_COUNTS = ("tokens", "pages", "bytes", "bits", "int")


def prepared(checked: Checked) -> t.Method:
    """The method with tolerant ensures, and after each its twin."""
    items: list[t.Item] = []
    for item in checked.method.items:
        if not isinstance(item, t.Ensure):
            items.append(item)
            continue
        items.append(replace(item, condition=_tolerant(item.condition, checked)))
        # `false and X` is never true and names what X names, so it "fails" exactly where X is due.
        items.append(t.Ensure(_TWIN + item.text, t.Binary("and", _FALSE, item.condition), span=item.span))
    return replace(checked.method, items=tuple(items))


def clause_of(text: str) -> tuple[str, bool]:
    """The clause that a failure's text means, and whether it is the twin's."""
    return (text.removeprefix(_TWIN), True) if text.startswith(_TWIN) else (text, False)


def _tolerant(expr: t.Expr, checked: Checked) -> t.Expr:
    """Comparisons of numbers that are not counts, with the right side moved by the rounding; premises and negations stay exact."""
    if not isinstance(expr, t.Binary):
        return expr
    if expr.op == "implies":
        return replace(expr, right=_tolerant(expr.right, checked))
    if expr.op in ("and", "or"):
        return replace(expr, left=_tolerant(expr.left, checked), right=_tolerant(expr.right, checked))
    if expr.op not in ("<", "<=", ">", ">=") or not (_real(expr.left, checked) or _real(expr.right, checked)):
        return expr
    size = t.Binary("+", t.Binary("+", _size(expr.left), _size(expr.right)), t.Int(1))
    slack = t.Binary("*", t.Float(ROUNDING), size)
    return replace(expr, right=t.Binary("+" if expr.op in ("<", "<=") else "-", expr.right, slack))


def _real(expr: t.Expr, checked: Checked) -> bool:
    found = checked.type_of(expr)
    return found.kind == "number" and found.unit not in _COUNTS and not isinstance(expr, t.Int)


def _size(expr: t.Expr) -> t.Expr:
    return t.Call(t.Ident("clip"), (t.Call(t.Ident("abs"), (expr,)), t.Int(0), t.Float(_FINITE)))
