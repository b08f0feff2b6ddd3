"""What is known before any request runs: params at their defaults, named layer sets, and the facts of a model."""

from __future__ import annotations

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.evaluate import EvaluationError, Value, evaluate


def default_values(ctx: Context) -> dict[str, Value]:
    """Values by name. What depends on a model that is not given is left out."""
    known: dict[str, Value] = dict(ctx.model or {})
    for item in ctx.method.items:
        if isinstance(item, t.Param) and item.unit.text == "choice" and isinstance(item.default, t.Ref):
            known[item.name.text] = item.default.name.text
        elif isinstance(item, t.Param | t.Layers):
            value = _value(item.default if isinstance(item, t.Param) else item.value, known)
            if value is not None:
                known[item.name.text] = value
    return known


def _value(expr: t.Expr, known: dict[str, Value]) -> Value | None:
    try:
        return evaluate(expr, known)
    except EvaluationError:
        return None
