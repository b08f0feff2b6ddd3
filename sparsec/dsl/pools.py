"""S308: the width of a pool, which is compiled in: an odd number of at least 1, so that a window has a middle.

Where the params behind a width have few values each is tried; otherwise `width - 1` must provably be even.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.evaluate import EvaluationError, Value, evaluate
from sparsec.dsl.paths import references, text_of
from sparsec.dsl.scopes import choices
from sparsec.dsl.static import provably_leq, provably_multiple

_TRIED = 256  # values of one param, and of all params together
_DEPTH = 8  # lets that read lets


def check_pools(ctx: Context) -> None:
    """Report every pool whose width may be even, or is known only when a sequence runs."""
    for node in t.walk(ctx.method):
        for keyword in node.keywords if isinstance(node, t.Reduce) else ():
            if keyword.name.text == "width" and not ctx.failed(keyword.value):
                _check_width(ctx, node, keyword.value)


def _check_width(ctx: Context, pool: t.Reduce, width: t.Expr) -> None:
    plain = _without_lets(ctx, width, _DEPTH)
    params = {item.name.text: item for item in ctx.method.of(t.Param)}
    foreign = next((ref for ref in references(plain) if not _is_compiled_in(ctx, ref, params)), None)
    shown = text_of(width, ctx)
    if foreign is not None or any(isinstance(part, t.Reduce) for part in t.walk(plain)):
        read = f"`{foreign.name}`" if foreign is not None else f"`{shown}`"
        message = f"the width of `{pool.op}` is compiled in, but {read} is known only when a model runs"
        ctx.report("S308", width, message, "use a number or a param, e.g. `param kernel: int in {3, 5, 7} = 7`")
        return
    needed = {name: item for name, item in params.items() if name in _needed(plain, params)}
    for env in _assignments(list(needed.items()), {}):
        if env is None:
            _check_provable(ctx, pool, width, plain)
            return
        value = _value(plain, env)
        if isinstance(value, int) and (value < 1 or value % 2 == 0):
            _report(ctx, pool, width, value, env)
            return


def _report(ctx: Context, pool: t.Reduce, width: t.Expr, value: int, env: Mapping[str, Value]) -> None:
    given = ", ".join(f"{name} = {str(part).lower() if isinstance(part, bool) else part}" for name, part in env.items())
    message = f"the width of `{pool.op}` is {value}{f' with {given}' if given else ''}: {_REASON}"
    ctx.report("S308", width, message, f"the nearest odd widths are {_near(value)}")


_REASON = "a window needs as many rows before its middle as after it"


def _near(value: int) -> str:
    return f"{value - 1} and {value + 1}" if value > 1 else "1 and 3"


def _check_provable(ctx: Context, pool: t.Reduce, width: t.Expr, plain: t.Expr) -> None:
    if provably_multiple(t.Binary("-", plain, t.Int(1)), t.Int(2), ctx) and provably_leq(t.Int(1), plain, ctx):
        return
    message = f"the width of `{pool.op}`, `{text_of(width, ctx)}`, is not provably odd: {_REASON}"
    ctx.report("S308", width, message, "list its values, e.g. `param kernel: int in {3, 5, 7} = 7`, or write `2 * n + 1`")


# ---- what a width reads --------------------------------------------------------------------------


def _without_lets(ctx: Context, expr: t.Node, depth: int) -> t.Node:
    """The expression with its lets written out."""
    if isinstance(expr, t.Ref):
        value = ctx.let_value(expr) if depth else None
        if value is None:
            return expr
        written = _without_lets(ctx, value, depth - 1)
        ctx.types.setdefault(id(written), ctx.type_of(value))
        return written
    changed: dict[str, object] = {}
    for entry in fields(expr):
        part = getattr(expr, entry.name)
        if isinstance(part, t.Expr):
            changed[entry.name] = _without_lets(ctx, part, depth)
        elif isinstance(part, tuple) and any(isinstance(item, t.Expr) for item in part):
            changed[entry.name] = tuple(_without_lets(ctx, item, depth) for item in part)
    return replace(expr, **changed) if changed else expr


def _is_compiled_in(ctx: Context, ref: t.Ref, params: Mapping[str, t.Param]) -> bool:
    """A param, or a word that one is compared with."""
    symbol = ctx.symbol_of(ref)
    return ref.name.text in params or ref.name.text in ("true", "false") or symbol is not None and symbol.kind == "choice_value"


def _needed(expr: t.Node, params: Mapping[str, t.Param]) -> set[str]:
    """The params that an expression reads, and those that their ranges read."""
    found: set[str] = set()
    todo: list[t.Node] = [expr]
    while todo:
        for ref in references(todo.pop()):
            item = params.get(ref.name.text)
            if item is not None and ref.name.text not in found:
                found.add(ref.name.text)
                todo += [item.bound] if item.bound is not None and item.unit.text != "choice" else []
    return found


# ---- values ----------------------------------------------------------------------------------------


def _assignments(params: list[tuple[str, t.Param]], env: Mapping[str, Value]) -> Iterator[dict[str, Value] | None]:
    """All values of some params; None where they are too many to try."""
    for number, one in enumerate(_all(params, env)):
        if one is None or number >= _TRIED:
            yield None
            return
        yield one


def _all(params: list[tuple[str, t.Param]], env: Mapping[str, Value]) -> Iterator[dict[str, Value] | None]:
    if not params:
        yield dict(env)
        return
    (name, item), rest = params[0], params[1:]
    values = _values(item, env)
    if values is None:
        yield None
        return
    for value in values:
        yield from _all(rest, {**env, name: value})


def _values(item: t.Param, env: Mapping[str, Value]) -> list[Value] | None:
    if item.unit.text == "choice":
        return list(choices(item))
    if item.unit.text == "bool":
        return [False, True]
    if item.bound is None or item.unit.text in ("ratio", "layer_set"):
        return None
    if not item.bound.is_range:
        return [value for part in item.bound.low.items if (value := _value(part, env)) is not None]
    low = _value(item.bound.low, env)
    high = _value(item.bound.high, env) if item.bound.high is not None else None
    few = isinstance(low, int) and isinstance(high, int) and high - low < _TRIED
    return list(range(low, high + 1)) if few else None


def _value(expr: t.Expr, env: Mapping[str, Value]) -> Value | None:
    try:
        return evaluate(expr, env)
    except EvaluationError:
        return None
