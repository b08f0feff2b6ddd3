"""The ranges of a method's params, evaluated one after the other: a later range may name earlier params and model facts."""

from __future__ import annotations

from collections.abc import Mapping

from sparsec.dsl import tree as t
from sparsec.failures import CommandError
from sparsec.reference import Program
from sparsec.reference.evaluate import evaluate
from sparsec.reference.moment import Moment
from sparsec.reference.rows import Rows
from sparsec.reference.storage import Inputs, SequenceStorage
from sparsec.reference.values import Scalar, Value
from sparsec.verify.params import Range
from sparsec.verify.traces import Shape, make_inputs


def facts_of(shape: Shape, chunk: int) -> dict[str, Scalar]:
    """Facts of the tiny model, under the names of the language."""
    return {
        "n_layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "group": shape.group,
        "head_dim": shape.head_dim,
        "kv_width": 2 * shape.kv_heads * shape.head_dim,
        "hidden_width": shape.q_heads * shape.head_dim,
        "scale": shape.head_dim**-0.5,
        "chunk": chunk,
    }


def range_of(param: t.Param, method: t.Method, given: Mapping[str, Scalar], facts: Mapping[str, Scalar]) -> Range:
    """What a param may be when the params before it have the given values."""
    at = _scalars(method, given, facts)
    bound = param.bound
    low = high = None
    choices: tuple[Scalar, ...] = ()
    if bound is not None and bound.is_range:
        low = _number(bound.low, at)
        high = _number(bound.high, at) if bound.high is not None else None
    elif bound is not None and isinstance(bound.low, t.SetLiteral):
        choices = tuple(_word(item, param, at) for item in bound.low.items)
    return Range(param.unit.text, low, high, choices, _word(param.default, param, at))


def parsed(text: str, legal: Range, name: str) -> Scalar:
    """The value that a command line gives for a param."""
    value = _parsed(text, legal.unit, name)
    if not legal.holds(value):
        raise CommandError(f"--param {name}={text}: {_legal(legal)}", exit_code=2)
    return value


def _legal(legal: Range) -> str:
    if legal.choices:
        return "it must be one of " + ", ".join(map(str, legal.choices))
    return f"it must be in {legal.low}..{legal.high if legal.high is not None else ''}"


def _parsed(text: str, unit: str, name: str) -> Scalar:
    if unit == "choice":
        return text
    if unit == "bool" and text in ("true", "false"):
        return text == "true"
    try:
        if unit == "layer_set":
            return frozenset(int(layer) for layer in text.strip("{}").split(",") if layer.strip())
        if unit == "ratio":
            return float(text)
        if unit != "bool":
            return int(text)
    except ValueError:
        pass
    raise CommandError(f"--param {name}={text}: it must be of unit {unit}", exit_code=2)


def _word(expr: t.Expr, param: t.Param, at: Moment) -> Scalar:
    if param.unit.text == "choice":
        assert isinstance(expr, t.Ref), "the values of a choice are words"
        return expr.name.text
    return _number(expr, at)


def _number(expr: t.Expr, at: Moment) -> Scalar:
    value = evaluate(expr, at)
    assert not isinstance(value, Value), "a range or default of a param is one number"
    return value


def _scalars(method: t.Method, given: Mapping[str, Scalar], facts: Mapping[str, Scalar]) -> Moment:
    """A moment without rows: params and facts are all that can be read."""
    program = Program.of(method, given, facts)
    empty = make_inputs(Shape(1, 1, 1, 2), "gaussian", 1, 0, seed=0)
    storage = SequenceStorage(program, Inputs(empty.q, empty.k, empty.v))
    none = Rows.empty(1)
    return Moment(program, storage, 0, none, none, "params", dict(facts))
