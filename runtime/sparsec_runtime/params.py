"""Parameters of a method: what they may be, defaults that depend on others and on the model, and values that a request gives.

Values are Python numbers, bools or choice names. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import floor

Value = int | float | bool | str | frozenset
Values = Mapping[str, Value]
Facts = Mapping[str, float | int]
Of = Callable[[Values, Facts], Value]


class ParamError(ValueError):
    """A value that a param cannot have: names the param, the value and what is legal."""


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """`low`, `high` and `default` are functions of (params declared before, model facts); `high` None is unbounded, `choices` () is free."""

    name: str
    unit: str
    static: bool
    low: Of | None = None
    high: Of | None = None
    choices: tuple[Value, ...] = ()
    default: Of | None = None
    doc: str = ""


def resolve_params(specs: Sequence[ParamSpec], given: Values, facts: Facts, prompt_len: int | None = None) -> dict[str, Value]:
    """Every param's value: those given (checked; "25%" is that share of the prompt), the defaults of the others. Raises ParamError."""
    known = [spec.name for spec in specs]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"did you mean '{near[0]}'? " if near else ""
            raise ParamError(f"unknown param '{name}': {guess}this method has: {', '.join(known) or 'none'}")
    values: dict[str, Value] = {}
    for spec in specs:
        if spec.name in given:
            value = _number(spec, given[spec.name], values, facts, prompt_len)
        else:
            assert spec.default is not None, f"param '{spec.name}' has no default"
            value = spec.default(values, facts)
        values[spec.name] = _checked(spec, value, values, facts)
    return values


def _number(spec: ParamSpec, value: Value, values: Values, facts: Facts, prompt_len: int | None) -> Value:
    if not (isinstance(value, str) and value.endswith("%")):
        return value
    try:
        share = float(value[:-1]) / 100
    except ValueError as error:
        raise ParamError(f"param '{spec.name}' = {value}: not a percentage") from error
    if spec.unit != "tokens" or prompt_len is None:
        raise ParamError(f"param '{spec.name}' = {value}: a share of the prompt is for params in tokens, of a request with a prompt")
    rows = floor(share * prompt_len)
    return rows if spec.low is None else max(rows, spec.low(values, facts))


def _checked(spec: ParamSpec, value: Value, values: Values, facts: Facts) -> Value:
    value = _typed(spec, value)
    if spec.choices and value not in spec.choices:
        raise ParamError(f"param '{spec.name}' = {value}: it must be one of {', '.join(map(str, spec.choices))}")
    if spec.low is not None and value < spec.low(values, facts):
        raise ParamError(f"param '{spec.name}' = {value}: it must be at least {spec.low(values, facts)}")
    if spec.high is not None and value > spec.high(values, facts):
        raise ParamError(f"param '{spec.name}' = {value}: it must be at most {spec.high(values, facts)}")
    return value


def _typed(spec: ParamSpec, value: Value) -> Value:
    """The value in the type of its unit; numbers may be given as text, as a command line does."""
    try:
        if spec.unit == "layer_set":
            return frozenset(int(layer) for layer in value)
        if spec.unit == "choice":
            return str(value)
        if spec.unit == "bool":
            return _bool(value)
        if spec.unit == "ratio":
            return float(value)
        if isinstance(value, float) and value != floor(value):
            raise ValueError("not a whole number")
        return int(value)
    except (TypeError, ValueError) as error:
        raise ParamError(f"param '{spec.name}' = {value!r}: it must be of unit {spec.unit}") from error


def _bool(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise ValueError("neither true nor false")
