"""W8xx: things that are legal but have no effect, or surely not the one that was meant.

Warnings only, and only about what the author wrote: a specialised method is not linted.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparsec.diagnostics import Fix
from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.cost import quadratic_entries, slow_statements
from sparsec.dsl.defaults import default_values
from sparsec.dsl.paths import all_places, conditions_of, references, text_of
from sparsec.dsl.sizes import member_domain
from sparsec.dsl.static import provably_leq
from sparsec.dsl.unused import check_unused, warn
from sparsec.dsl.visibility import holds_own

_MONOTONE = frozenset({"exp", "sqrt", "log"})
_ZERO, _ONE = t.Int(0), t.Int(1)
_OF_HOST_MEMORY = ("cache_policy", "gpu_cache")  # entries of `schedule`
_CONTEXT = "context"  # the model fact that holds its trained context length


def check_lints(ctx: Context) -> None:
    """Report every W8xx finding of the method."""
    check_unused(ctx)
    _check_context(ctx)
    _check_allowance(ctx)
    _check_host_memory(ctx)
    _check_attended(ctx)
    for node in t.walk(ctx.method):
        if isinstance(node, t.Reduce) and node.op.text in ("top", "bottom"):
            _check_monotone(ctx, node)
        elif isinstance(node, t.Call) and node.name.text in ("recent", "sink", "oldest", "last") and node.args:
            _check_empty(ctx, node)
        elif isinstance(node, t.Ranking):
            _check_then(ctx, node)
        elif isinstance(node, t.Attend) and node.blind and holds_own(node.read.steps[0], ctx, None):
            rows = text_of(node.read.steps[0], ctx)
            warn(ctx, "W811", node, f"`blind` has no effect: `{rows}` holds the query's own row", "remove `blind`")
    for hook in ctx.method.of(t.Hook):
        for condition in conditions_of(hook):
            _check_constant(ctx, condition)


# ---- blocks and properties without effect ----------------------------------------------------------


def _check_allowance(ctx: Context) -> None:
    entries = quadratic_entries(ctx)
    if entries and next(slow_statements(ctx), None) is None:
        message = "`allow_quadratic` has no effect: no decode hook costs more than attention"
        warn(ctx, "W809", entries[0], message, "remove it, so that a later change is noticed")


def _check_host_memory(ctx: Context) -> None:
    if any(zone.tier is not None and zone.tier.text == "cpu" for zone in ctx.method.of(t.Zone)):
        return
    for schedule in ctx.method.of(t.Schedule):
        for entry in schedule.entries:
            if entry.name.text in _OF_HOST_MEMORY:
                message = f"`{entry.name}` has no effect: it is about rows in host memory, and no zone of this method lies there"
                warn(ctx, "W812", entry, message, "remove it, or put a zone there: `zone NAME at cpu`")


def _check_attended(ctx: Context) -> None:
    if any(isinstance(place.stmt, t.Attend) for place in all_places(ctx.method)):
        return
    for ensure in ctx.method.of(t.Ensure):
        read = next((ref for ref in references(ensure) if ref.name.text == "attended"), None)
        if read is not None:
            message = "this property is never tested: it speaks of `attended`, and no hook of this method has an `attend`"
            warn(ctx, "W810", read, message, "speak of `kept`, or remove the property")


# ---- params and the model ------------------------------------------------------------------------


def _check_context(ctx: Context) -> None:
    if ctx.model is None or _CONTEXT not in ctx.model:
        return
    limit, known = ctx.model[_CONTEXT], default_values(ctx)
    for param in ctx.method.of(t.Param):
        value = known.get(param.name.text)
        if param.unit.text == "tokens" and isinstance(value, int | float) and value > limit:
            message = f"the default of `{param.name}` is {value}, above this model's context of {limit}"
            warn(ctx, "W805", param.default, message, "the method never acts with this model: choose a smaller value")


# ---- expressions without effect --------------------------------------------------------------------


def _check_monotone(ctx: Context, ranking: t.Reduce) -> None:
    """A ranking sees order alone, so a growing transform of its score changes nothing."""
    score = ranking.args[0]
    inner = _undone(ctx, ranking, score)
    if inner is not None:
        message = f"{_transform(score)} does not change the order, so `{ranking.op.text}` chooses the same without it"
        replacement = text_of(inner, ctx)
        warn(ctx, "W804", score, message, f"rank `{replacement}`", (Fix(score.span, replacement),))


def _transform(score: t.Expr) -> str:
    match score:
        case t.Reduce(op=name) | t.Call(name=name):
            return f"`{name.text}`"
    return "a constant"


def _undone(ctx: Context, ranking: t.Reduce, score: t.Expr) -> t.Expr | None:
    """The expression under a transform that keeps the order within each ranking."""
    letters = {binder.letter.text for binder in ranking.binders}
    match score:
        case t.Reduce(op=t.Ident(text="softmax"), binders=binders, args=(inner,)):
            same_support = {b.within for b in binders} == {b.within for b in ranking.binders}
            return inner if letters <= {b.letter.text for b in binders} and same_support else None
        case t.Call(name=name, args=(inner,)) if name.text in _MONOTONE:
            return inner
        case t.Binary(op="+" | "-", left=inner, right=constant) if _is_constant(ctx, constant):
            return inner
        case t.Binary(op="*" | "/", left=inner, right=factor) if _is_positive(ctx, factor):
            return inner
        case t.Binary(op="+", left=constant, right=inner) if _is_constant(ctx, constant):
            return inner
        case t.Binary(op="*", left=factor, right=inner) if _is_positive(ctx, factor):
            return inner
    return None


def _is_constant(ctx: Context, expr: t.Expr) -> bool:
    found = ctx.type_of(expr)
    return found.static and not found.free


def _is_positive(ctx: Context, expr: t.Expr) -> bool:
    if isinstance(expr, t.Float):
        return expr.value > 0
    return _is_constant(ctx, expr) and provably_leq(_ONE, expr, ctx)


def _check_empty(ctx: Context, call: t.Call) -> None:
    if provably_leq(call.args[0], _ZERO, ctx):
        helps = "write `none` if no row is meant" if call.name.text != "last" else "observe at least one query: `last(1)`"
        warn(ctx, "W806", call, f"`{text_of(call, ctx)}` is always empty", helps)


# ---- rankings that take nothing ----------------------------------------------------------------------


def _check_then(ctx: Context, ranking: t.Ranking) -> None:
    for index, step in enumerate(ranking.steps[1:], start=1):
        reason = _takes_nothing(ctx, ranking, index)
        if reason is not None:
            warn(ctx, "W807", step, f"this ranking never takes anything: {reason}", "remove it, or give it room")
            return


def _takes_nothing(ctx: Context, ranking: t.Ranking, index: int) -> str | None:
    before, upto = ranking.steps[index - 1], ranking.upto
    if _takes_all(before):
        reason = "takes all that fits" if index > 1 else "is every row already"
        return f"`{text_of(before, ctx)}` {reason}"
    own = _candidates(ranking.steps[index])
    if own is not None and own in _parts(ranking.steps[0]):
        return f"`{text_of(own, ctx)}` is kept already"
    if index > 1 or upto is None or member_domain(ranking.steps[-1], ctx) != "token":
        return None
    joint = len(ctx.type_of(ranking.steps[-1]).base) > 1
    full = None if joint else next((part for part in _parts(ranking.steps[0]) if _fills(ctx, part, upto)), None)
    return None if full is None else f"`{text_of(full, ctx)}` fills `upto {text_of(upto, ctx)}` alone"


def _takes_all(step: t.Expr) -> bool:
    if isinstance(step, t.Reduce):
        return step.op.text in ("top", "bottom") and len(step.args) == 1
    return isinstance(step, t.Ref) and step.name.text == "all"


def _candidates(step: t.Expr) -> t.Expr | None:
    """S of `top[t in S](...)`."""
    return step.binders[0].within if isinstance(step, t.Reduce) and len(step.binders) == 1 else None


def _parts(expr: t.Expr) -> Iterator[t.Expr]:
    if isinstance(expr, t.Binary) and expr.op == "|":
        yield from _parts(expr.left)
        yield from _parts(expr.right)
    else:
        yield expr


def _fills(ctx: Context, part: t.Expr, upto: t.Expr) -> bool:
    counted = isinstance(part, t.Call) and part.name.text in ("recent", "sink") and part.args
    return bool(counted) and provably_leq(upto, part.args[0], ctx)


# ---- conditions that never change ----------------------------------------------------------------------


def _check_constant(ctx: Context, condition: t.Expr) -> None:
    value = _truth(ctx, condition)
    if value is not None:
        helps = "remove the condition" if value else "remove what it guards, or correct it"
        warn(ctx, "W808", condition, f"`{text_of(condition, ctx)}` is always {str(value).lower()}", helps)


def _truth(ctx: Context, expr: t.Expr) -> bool | None:
    match expr:
        case t.Ref(name=t.Ident(text="true" | "false" as word)):
            return word == "true"
        case t.Unary(op="not", operand=operand):
            inner = _truth(ctx, operand)
            return None if inner is None else not inner
        case t.Binary(op="and" | "or" as op, left=left, right=right):
            sides = (_truth(ctx, left), _truth(ctx, right))
            decisive = op == "or"
            return decisive if decisive in sides else (not decisive if None not in sides else None)
        case t.Binary(op="<" | "<=" | ">" | ">=" as op, left=left, right=right):
            return _compared(ctx, op, left, right)
    return None


def _compared(ctx: Context, op: str, left: t.Expr, right: t.Expr) -> bool | None:
    """Numbers of rows and params are whole, so a < b is a + 1 <= b."""
    if op in (">", ">="):
        left, right, op = right, left, {">": "<", ">=": "<="}[op]
    if not all(ctx.type_of(side).unit in ("tokens", "pages", "int") for side in (left, right)):
        return None
    if op == "<":
        if provably_leq(t.Binary("+", left, _ONE), right, ctx):
            return True
        return False if provably_leq(right, left, ctx) else None
    if provably_leq(left, right, ctx):
        return True
    return False if provably_leq(t.Binary("+", right, _ONE), left, ctx) else None
