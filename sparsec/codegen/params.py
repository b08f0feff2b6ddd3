"""Params of a method for the runtime: ranges and defaults as Python text over `params` and `model`."""

from __future__ import annotations

from sparsec.codegen.lower import host
from sparsec.codegen.lower.scope import Names
from sparsec.codegen.plan import ParamPlan
from sparsec.dsl import tree as t
from sparsec.dsl.specialise import StaticValue


def plan_params(original: t.Method, names: Names, static: dict[str, StaticValue]) -> tuple[ParamPlan, ...]:
    """All params in order of declaration; those that were compiled in have their one value."""
    return tuple(
        _static(param, static[param.name.text], names) if param.name.text in static else _dynamic(names.params[param.name.text], names)
        for param in original.of(t.Param)
    )


def _static(param: t.Param, value: StaticValue, names: Names) -> ParamPlan:
    if isinstance(value, t.Expr):
        text = f"frozenset({host.text(value, host.Where(names, {'none': '()'}))})"
        return ParamPlan(param.name.text, param.unit.text, True, None, None, (), text, param.doc)
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return ParamPlan(param.name.text, param.unit.text, True, None, None, (text,), text, param.doc)


def _dynamic(param: t.Param, names: Names) -> ParamPlan:
    where = host.Where(names)
    bound = param.bound
    low = host.text(bound.low, where) if bound is not None and bound.is_range else None
    high = host.text(bound.high, where) if bound is not None and bound.high is not None else None
    choices: tuple[str, ...] = ()
    if bound is not None and not bound.is_range and isinstance(bound.low, t.SetLiteral):
        choices = tuple(host.text(item, where) for item in bound.low.items)
    return ParamPlan(param.name.text, param.unit.text, False, low, high, choices, host.text(param.default, where), param.doc)
