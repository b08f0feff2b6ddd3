"""Reductions to numbers: over heads and channels, over rows of a set, over pages' slots, over queries in blocks."""

from __future__ import annotations

from sparsec.codegen.lower import build, expressions, sets
from sparsec.codegen.lower.scope import Scope
from sparsec.codegen.plan import Accumulate, Op, canonical
from sparsec.codegen.unsupported import unsupported
from sparsec.dsl import tree as t

_PLAIN = ("sum", "mean", "max", "min", "any", "every", "count", "norm")
_SMOOTH = ("maxpool", "avgpool", "softmax", "cumsum")


def lower(expr: t.Reduce, scope: Scope) -> Op:
    name = expr.op.text
    if name == "apportion":
        return _apportion(expr, scope)
    if name in _SMOOTH:
        return _smooth(expr, scope)
    if name not in _PLAIN:
        unsupported(f"`{name}[...]`", expr.span, "the reference target runs it", "S906")
    letters = tuple(binder.letter.text for binder in expr.binders)
    queries = next((b for b in expr.binders if b.letter.text == "i"), None)
    if queries is not None and queries.within is not None:
        return _over_window(expr, queries, letters, scope)
    if queries is not None and scope.in_blocks and scope.queries is None and not scope.in_selection:
        return _over_blocks(expr, letters, scope)
    return _reduce(expr, letters, scope)


def _over_window(expr: t.Reduce, queries: t.Binder, letters: tuple[str, ...], scope: Scope) -> Op:
    within = queries.within
    if not (isinstance(within, t.Call) and within.name.text == "last"):
        unsupported("this set of queries", queries.span, "write `i in last(n)`", "S904")
    window = Op("window", (expressions.lower(within.args[0], scope),), kind="model")
    valid = Op("of_queries", (window,), ("query_valid",), ("i",), "bool")
    with scope.reading(window):
        return _reduce(expr, letters, scope, where=valid)


def _over_blocks(expr: t.Reduce, letters: tuple[str, ...], scope: Scope) -> Op:
    """A step that adds up over the blocks of a chunk; the value is a local from then on."""
    fn = expr.op.text
    if fn not in ("sum", "mean", "max", "min"):
        unsupported(f"`{fn}[i]` over the queries of a chunk", expr.span, "use sum, mean, max or min", "S904")
    with scope.reading(build.value("block", kind="model")):
        part = _reduce(expr, letters, scope, fn="sum" if fn == "mean" else fn, over_blocks=fn == "mean")
    name = scope.name(f"{fn}_of_queries")
    scope.steps.append(Accumulate(name, fn, part, expr.span.line))
    return build.local(name, part)


def _reduce(
    expr: t.Reduce, letters: tuple[str, ...], scope: Scope, where: Op | None = None, fn: str = "", over_blocks: bool = False
) -> Op:
    fn = fn or expr.op.text
    if over_blocks and letters != ("i",):
        unsupported("a mean over i and other letters together, in blocks", expr.span, "write mean[i](mean[...](...))", "S904")
    pages = [b for b in expr.binders if _is_page(b.within, scope)]
    if pages:
        return _over_slots(expr, pages[0], letters, scope, where)
    arg = expressions.lower(expr.args[0], scope)
    for binder in expr.binders:
        if binder.within is not None and binder.letter.text != "i":
            members = sets.members(binder.within, binder.letter.text, scope)
            where = members if where is None else build.logic("and", where, members)
        elif binder.letter.text in ("t", "s", "p") and binder.letter.text in arg.axes:
            members = arg.support or sets.everything(binder.letter.text, scope)
            where = members if where is None else build.logic("and", where, members)
    return _finish(expr, fn, letters, arg, where)


def _finish(expr: t.Reduce, fn: str, letters: tuple[str, ...], arg: Op, where: Op | None) -> Op:
    if fn == "count":
        mask = where if arg.host and arg.kind != "bool" else arg if where is None else build.logic("and", arg, where)
        if mask is None:
            unsupported("a count of everything", expr.span, "count members of a set: count[t in S](1)", "S906")
        return build.reduce("count", letters, mask, None, "int")
    if where is not None:
        axes, thin = build.joined(arg, where)
        arg = build.widen(arg, axes, thin) if arg.host else arg
        if arg.thin and "h" not in axes:
            axes = canonical(set(axes))
        missing = [a for a in axes if a not in arg.axes and not (a == "h" and where.thin)]
        arg = build.apply("spread", arg, where, kind=arg.kind) if missing else arg
    absent = [a for a in letters if a not in arg.axes]
    if absent and fn in ("max", "min", "mean", "any", "every"):
        letters = tuple(a for a in letters if a in arg.axes)
    elif absent:
        unsupported(f"a {fn} over `{absent[0]}` of a value without it", expr.span, "multiply by the size instead", "S906")
    if not letters:
        return arg
    kind = "bool" if fn in ("any", "every") else arg.kind if fn in ("max", "min") or arg.kind == "int" and fn == "sum" else "real"
    return build.reduce(fn, letters, arg, where, kind)


def _is_page(within: t.Expr | None, scope: Scope) -> bool:
    return isinstance(within, t.Ref) and not within.indices and scope.names.letters.get(within.name.text) == "page"


def _over_slots(expr: t.Reduce, binder: t.Binder, letters: tuple[str, ...], scope: Scope, where: Op | None) -> Op:
    token, page = binder.letter.text, binder.within.name.text
    with scope.paging(token, page):
        arg = expressions.lower(expr.args[0], scope)
    slots = split(sets.everything("t", scope), "t", page)
    where = slots if where is None else build.logic("and", where, slots)
    return _finish(expr, expr.op.text, tuple("slot" if a == token else a for a in letters), arg, where)


def split(op: Op, token: str, page: str) -> Op:
    """The token axis as page and slot axes."""
    axes = canonical((set(op.axes) - {token}) | {page, "slot"})
    return Op("split", (op,), (token, page), axes, op.kind, thin=op.thin)


def _smooth(expr: t.Reduce, scope: Scope) -> Op:
    name, binder = expr.op.text, expr.binders[0]
    if len(expr.binders) > 1:
        unsupported(f"`{name}` over several letters", expr.span, "use one letter", "S906")
    letter = binder.letter.text
    arg = expressions.lower(expr.args[0], scope)
    if letter not in ("t", "s", "p"):
        return Op("smooth", (arg,), (name, letter, None), arg.axes, "real", thin=arg.thin)
    members = sets.members(binder.within, letter, scope) if binder.within is not None else arg.support or sets.everything(letter, scope)
    width = next((k.value.value for k in expr.keywords if k.name.text == "width"), None)
    axes, _ = build.joined(arg, members)
    if not arg.thin and "h" not in arg.axes and members.thin:
        members = build.widen(members, tuple(a for a in members.axes if a != "h"))
        axes, _ = build.joined(arg, members)
    arg = build.widen(arg, axes) if set(arg.axes) != set(axes) else arg
    return Op("smooth", (arg, members), (name, letter, width), axes, "real", thin=arg.thin, support=members)


def _apportion(expr: t.Reduce, scope: Scope) -> Op:
    raw, total = (expressions.lower(arg, scope) for arg in expr.args)
    letter = expr.binders[0].letter.text
    if len(expr.binders) > 1 or letter not in raw.axes:
        unsupported("this apportion", expr.span, "apportion over one letter that the shares depend on", "S906")
    total = build.widen(total, tuple(a for a in raw.axes if a != letter)) if total.axes else total
    return Op("apportion", (raw, total), (letter,), raw.axes, "int", thin=raw.thin)
