"""Values of params on the host: given ones checked, defaults computed, shares of the prompt resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparsec_runtime.params import ParamError, ParamSpec, Value, resolve_params

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.specialise import StaticValue, static_params
from sparsec.failures import CommandError
from sparsec.graph.host import FACTS, HELPERS, Python, compiled, host_known
from sparsec.graph.program import Program

Numbers = Mapping[str, int | float]


def resolve(checked: Checked, given: Mapping[str, str], model: Numbers, prompt_len: int | None = None) -> dict[str, Value]:
    """Every param of the unspecialised method; a CommandError says which value is wrong and what is legal."""
    specs = _specs(checked)
    units = {spec.name: spec.unit for spec in specs}
    values = {name: layer_set(name, text) if units.get(name) == "layer_set" else text for name, text in given.items()}
    try:
        return resolve_params(specs, values, model, prompt_len)
    except ParamError as error:
        raise CommandError(str(error), exit_code=2) from error


def static_values(checked: Checked, given: Mapping[str, str], model: Numbers | None = None) -> dict[str, StaticValue]:
    """Values to specialise with. A default that depends on the model stays an expression: one artifact serves every model."""
    program = Program(checked)
    static = static_params(checked.method)
    needs_model = {name for name, param in program.params.items() if program.reads(param.default, None) & FACTS}
    known = {name: text for name, text in given.items() if name in program.params}
    numbers = model or {name: 1 for name in FACTS}
    values = resolve(checked, known, numbers)
    result: dict[str, StaticValue] = {}
    for name in sorted(static):
        value = program.params[name].default if name in needs_model and name not in given else values[name]
        result[name] = _literal_set(value) if isinstance(value, frozenset) else value
    return result


def layer_set(name: str, text: str) -> frozenset[int]:
    """`0,2,5` or `{0, 2, 5}`."""
    try:
        return frozenset(int(part) for part in text.strip("{} ").split(",") if part.strip())
    except ValueError as error:
        raise CommandError(f"param '{name}' = {text}: give layers as numbers, e.g. {name}=0,2,5", exit_code=2) from error


def _literal_set(layers: frozenset[int]) -> t.Expr:
    return t.SetLiteral(tuple(t.Int(layer) for layer in sorted(layers))) if layers else t.Ref(t.Ident("none"))


def _specs(checked: Checked) -> tuple[ParamSpec, ...]:
    program = Program(checked)
    static = static_params(checked.method)
    python = Python(program)
    specs = []
    for name, param in program.params.items():
        bound = param.bound
        choices = _choices(bound, python)
        low = _value(bound.low, python) if bound is not None and bound.is_range else None
        high = _value(bound.high, python) if bound is not None and bound.high is not None else None
        default = param.default
        assert host_known(default, program, None), f"the default of param {name} is not a host value"
        specs.append(ParamSpec(name, param.unit.text, name in static, low, high, choices, _value(default, python), param.doc or ""))
    return tuple(specs)


def _choices(bound: t.Bound | None, python: Python) -> tuple[Value, ...]:
    if bound is None or bound.is_range or not isinstance(bound.low, t.SetLiteral):
        return ()
    return tuple(item.name.text if isinstance(item, t.Ref) else _value(item, python)({}, {}) for item in bound.low.items)


def _value(expr: t.Expr, python: Python) -> Callable[[Mapping[str, Value], Numbers], Value]:
    code = compiled(python(expr))
    return lambda params, model: eval(code, {**HELPERS, "params": params, "model": model})
