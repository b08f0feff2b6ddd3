"""Ranges and defaults of params: a default must lie in its range for all legal values of the params before it.

What is proven passes. What is not is tried with values at the ends of the ranges: a counterexample is an error and is
named; where none is found, the request's own values are checked when it comes (params.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.evaluate import EvaluationError, Value, evaluate
from sparsec.dsl.names import COUNT_UNITS, UNITS
from sparsec.dsl.scopes import choices
from sparsec.dsl.static import provably_leq

_TRIALS = 400
_MAX_NAMES = 8
_FACT_SAMPLES: dict[str, tuple[int | float, ...]] = {
    "n_layers": (1, 2, 32),
    "kv_heads": (1, 8),
    "group": (1, 4),
    "head_dim": (64, 128),
    "kv_width": (128, 1024),
    "hidden_width": (576, 4096),
    "scale": (0.125,),
}


def check_ranges(ctx: Context) -> None:
    """S305 and S306, for every numeric param whose range and default have types."""
    earlier: dict[str, t.Param] = {}
    for item in ctx.method.of(t.Param):
        numeric = item.unit.text in (*COUNT_UNITS, "ratio")
        if item.bound is not None and numeric and _typed(ctx, item):
            _check_duplicates(ctx, item)
            if _check_not_empty(ctx, item, earlier):
                _check_default(ctx, item, earlier)
        earlier.setdefault(item.name.text, item)


def _typed(ctx: Context, item: t.Param) -> bool:
    values = item.bound.low.items if isinstance(item.bound.low, t.SetLiteral) else (item.bound.low,)
    parts = [*values, item.default] + ([item.bound.high] if item.bound.high is not None else [])
    return all(ctx.type_of(part).kind == "number" for part in parts)


def _check_duplicates(ctx: Context, item: t.Param) -> None:
    if item.bound.is_range or not isinstance(item.bound.low, t.SetLiteral):
        return
    seen: list[t.Expr] = []
    for value in item.bound.low.items:
        if value in seen:
            ctx.report("S114", value, f"this value of `{item.name}` occurs twice", "remove one")
        seen.append(value)


def _check_not_empty(ctx: Context, item: t.Param, earlier: Mapping[str, t.Param]) -> bool:
    bound = item.bound
    if not bound.is_range or bound.high is None or provably_leq(bound.low, bound.high, ctx):
        return True
    for env in _samples(ctx, (bound.low, bound.high), earlier):
        low, high = _value(bound.low, env), _value(bound.high, env)
        if low is not None and high is not None and low > high:
            message = f"the range of `{item.name}` is empty{_when(env, earlier)}: {low}..{high}"
            ctx.report("S306", bound, message, "widen the range, or narrow the one of an earlier param")
            return False
    return True


def _check_default(ctx: Context, item: t.Param, earlier: Mapping[str, t.Param]) -> None:
    bound, default = item.bound, item.default
    if not bound.is_range:
        _check_member(ctx, item, earlier)
        return
    for end, below in ((bound.low, True), (bound.high, False)):
        if end is None or provably_leq(*((end, default) if below else (default, end)), ctx):
            continue
        for env in _samples(ctx, (end, default), earlier):
            limit, value = _value(end, env), _value(default, env)
            if limit is not None and value is not None and (value < limit if below else value > limit):
                where = f"below {limit}" if below else f"above {limit}"
                message = f"the default of `{item.name}` is outside its range{_when(env, earlier)}: {value} is {where}"
                fit = f"`max({_text(end)}, ...)`" if below else f"`min({_text(end)}, ...)`"
                ctx.report("S305", default, message, f"limit it, e.g. with {fit}")
                return


def _text(expr: t.Expr) -> str:
    if isinstance(expr, t.Int):
        return str(expr.value)
    return expr.name.text if isinstance(expr, t.Ref) else "limit"


def _check_member(ctx: Context, item: t.Param, earlier: Mapping[str, t.Param]) -> None:
    values = item.bound.low.items if isinstance(item.bound.low, t.SetLiteral) else ()
    for env in _samples(ctx, (*values, item.default), earlier):
        legal, value = [_value(part, env) for part in values], _value(item.default, env)
        if value is not None and None not in legal and value not in legal:
            message = f"the default of `{item.name}` is none of its values{_when(env, earlier)}: {value}"
            ctx.report("S305", item.default, message, f"values: {', '.join(str(part) for part in legal)}")
            return


# ---- samples -------------------------------------------------------------------------------------


def _value(expr: t.Expr, env: Mapping[str, Value]) -> int | float | None:
    try:
        value = evaluate(expr, env)
    except EvaluationError:
        return None
    return value if isinstance(value, int | float) else None


def _when(env: Mapping[str, Value], earlier: Mapping[str, t.Param]) -> str:
    shown = [f"{name} = {str(value).lower() if isinstance(value, bool) else value}" for name, value in env.items()]
    return f" with {', '.join(shown)}" if shown else ""


def _samples(ctx: Context, exprs: tuple[t.Expr, ...], earlier: Mapping[str, t.Param]) -> Iterator[dict[str, Value]]:
    """Values at the ends of the ranges for all names that the expressions depend on; none where these are too many."""
    if ctx.effort <= 0:
        return iter(())
    needed = _needed(exprs, earlier)
    ordered = [name for name in _FACT_SAMPLES if name in needed] + [name for name in earlier if name in needed]
    if len(ordered) > _MAX_NAMES:
        return iter(())
    return islice(_assignments(ctx, ordered, earlier, {}), _TRIALS)


def _needed(exprs: tuple[t.Expr, ...], earlier: Mapping[str, t.Param]) -> set[str]:
    found: set[str] = set()
    todo: list[t.Node] = list(exprs)
    while todo and len(found) <= 2 * _MAX_NAMES:
        for node in t.walk(todo.pop()):
            if isinstance(node, t.Ref) and node.name.text not in found:
                found.add(node.name.text)
                item = earlier.get(node.name.text)
                if item is not None and item.bound is not None and item.unit.text != "choice":
                    todo.extend((item.bound, item.default))
    return found


def _assignments(
    ctx: Context, names: list[str], earlier: Mapping[str, t.Param], env: dict[str, Value]
) -> Iterator[dict[str, Value]]:
    if not names:
        yield dict(env)
        return
    for value in _candidates(ctx, names[0], earlier, env):
        ctx.effort -= 1
        if ctx.effort > 0:
            yield from _assignments(ctx, names[1:], earlier, {**env, names[0]: value})


def _candidates(ctx: Context, name: str, earlier: Mapping[str, t.Param], env: Mapping[str, Value]) -> list[Value]:
    if name not in earlier:
        known = ctx.model.get(name) if ctx.model is not None else None
        return list(_FACT_SAMPLES[name]) if known is None else [known]
    item = earlier[name]
    if item.unit.text == "bool":
        return [False, True]
    if item.unit.text == "choice":
        return list(choices(item))
    if item.unit.text not in UNITS or item.unit.text == "layer_set":
        return []
    return _numbers(item, env)


def _numbers(item: t.Param, env: Mapping[str, Value]) -> list[Value]:
    default = _value(item.default, env)
    if item.bound is None:
        return [] if default is None else [default]
    if not item.bound.is_range:
        values = item.bound.low.items if isinstance(item.bound.low, t.SetLiteral) else ()
        return [value for part in values if (value := _value(part, env)) is not None]
    low = _value(item.bound.low, env)
    high = _value(item.bound.high, env) if item.bound.high is not None else None
    if low is None or item.bound.high is not None and high is None:
        return []
    step = 1 if item.unit.text != "ratio" else (high - low) / 2 if high is not None else 0.5
    tried = [low, low + step, default if default is not None else low, high if high is not None else low + 1000]
    return list(dict.fromkeys(value for value in tried if value >= low and (high is None or value <= high)))
