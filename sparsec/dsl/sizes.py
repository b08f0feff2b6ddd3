"""Static bounds of sets: at most how many rows or pages a set expression holds, as an expression over params.

A set has several bounds where it has several forms (`where`); each holds in its own case. No bound (None) means that
the set may hold every row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context

TOKEN, PAGE = "token", "page"
Forms = tuple[t.Expr, ...] | None
_DEPTH = 100  # nested expressions, those of lets included
_NODES = 400  # size of one bound
_FORMS = 16  # forms of one set that are told apart
_ONE = t.Int(1)
_PAGE_SIZE = t.Ref(t.Ident("page_size"))
_MEMBERS = {"zone": TOKEN, "layer_set": "layer"}
_RANKINGS = frozenset({"top", "bottom"})


def size_bound(expr: t.Expr, ctx: Context, unit: str | None = None) -> t.Expr | None:
    """The static bound of a set in `unit` (default: of its own members), or None where there is none."""
    forms = size_forms(expr, ctx, unit or member_domain(expr, ctx))
    return None if forms is None else _largest(forms)


def member_domain(expr: t.Expr, ctx: Context) -> str | None:
    """What the members of a set are, heads and layers of a joint ranking aside; None where any fits or it is unknown."""
    kind = ctx.type_of(expr).kind
    if kind in _MEMBERS:
        return _MEMBERS[kind]
    domains = [ctx.letters.get(letter) for letter in ctx.type_of(expr).base]
    return next((domain for domain in domains if domain not in ("kv_head", "layer")), domains[0] if domains else None)


def size_forms(expr: t.Expr, ctx: Context, unit: str | None) -> Forms:
    """One bound per form of the set, or None where some form has none."""
    return _Sizes(ctx, unit).of(expr, 0)


@dataclass(slots=True)
class _Sizes:
    """`known`: bounds of expressions already measured, so that lets that share parts cost nothing."""

    ctx: Context
    unit: str | None
    known: dict[int, Forms] = field(default_factory=dict)

    def of(self, expr: t.Expr, depth: int) -> Forms:
        if id(expr) not in self.known:
            self.known[id(expr)] = None
            self.known[id(expr)] = _small(self._measure(expr, depth + 1)) if depth < _DEPTH else None
        return self.known[id(expr)]

    def _measure(self, expr: t.Expr, depth: int) -> Forms:
        match expr:
            case t.Ref() if (value := self.ctx.let_value(expr)) is not None:
                return self.of(value, depth)
            case t.Ref(name=name):
                return _named_size(name.text, self.unit)
            case t.Call(name=t.Ident(text="where"), args=(_, left, right)):
                return _either(self.of(left, depth), self.of(right, depth))
            case t.Call():
                return _builder_size(expr, self.unit)
            case t.Reduce(op=op, args=(_, count)) if op.text in _RANKINGS:
                return (_converted(count, member_domain(expr, self.ctx), self.unit),)
            case t.Binary(op="|", left=left, right=right):
                return _together(self.of(left, depth), self.of(right, depth))
            case t.Binary(op="&", left=left, right=right):
                return self.of(left, depth) or self.of(right, depth)
            case t.Binary(op="-", left=left):
                return self.of(left, depth)
        return None


def _small(forms: Forms) -> Forms:
    """Bounds that grew beyond what a proof should look at count as none."""
    if forms is None or any(next(islice(t.walk(form), _NODES, None), None) is not None for form in forms):
        return None
    return forms


def _named_size(name: str, unit: str | None) -> Forms:
    if name == "none":
        return (t.Int(0),)
    if name == "open_page":
        return (_ONE,) if unit == PAGE else (_PAGE_SIZE,)
    return None


def _builder_size(call: t.Call, unit: str | None) -> Forms:
    name = call.name.text
    if name == "itself":
        return (_ONE,)
    if name not in ("sink", "recent", "oldest", "last") or not call.args:
        return None
    count = call.args[0]
    if unit != PAGE or count in (t.Int(0), _ONE):
        return (count,)
    whole = t.Call(t.Ident("pages_for"), (count,))
    touched = whole if name == "sink" else t.Binary("+", whole, _ONE)  # a window may straddle one border more
    return (t.Call(t.Ident("min"), (count, touched)),)


def _converted(count: t.Expr, have: str | None, want: str | None) -> t.Expr:
    """A page holds page_size tokens; a token touches one page."""
    return t.Binary("*", count, _PAGE_SIZE) if have == PAGE and want == TOKEN else count


def _together(left: Forms, right: Forms) -> Forms:
    if left is None or right is None or len(left) * len(right) > _FORMS:
        return None
    return tuple(_sum([one, other]) for one in left for other in right)


def _either(left: Forms, right: Forms) -> Forms:
    if left is None or right is None or len(left) + len(right) > _FORMS:
        return None
    return (*left, *(form for form in right if form not in left))


def _sum(sizes: list[t.Expr]) -> t.Expr:
    total = sizes[0]
    for size in sizes[1:]:
        total = t.Binary("+", total, size)
    return total


def _largest(forms: tuple[t.Expr, ...]) -> t.Expr:
    return forms[0] if len(forms) == 1 else t.Call(t.Ident("max"), forms)
