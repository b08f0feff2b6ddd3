"""Values of static expressions, with the language's rounding: `//` and `floor` down, `round` half to even, `/` a ratio."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sparsec.dsl import tree as t

Value = int | float | bool | str | frozenset[int]


class EvaluationError(Exception):
    """An expression has no value: a name is missing, or a division is by zero."""

    def __init__(self, message: str, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing  # the name that has no value


def evaluate(expr: t.Expr, env: Mapping[str, Value]) -> Value:
    """Value of a scalar or layer-set expression; `env` holds params, model facts, and `layer` where it is read.

    A name that `env` lacks is taken for a choice value where it is compared with one.
    """
    match expr:
        case t.Int() | t.Float():
            return expr.value
        case t.Ref():
            return _ref(expr, env)
        case t.SetLiteral():
            return frozenset(int(_number(item, env)) for item in expr.items)
        case t.Unary(op="not"):
            return not evaluate(expr.operand, env)
        case t.Unary():
            return -_number(expr.operand, env)
        case t.Binary():
            return _binary(expr, env)
        case t.Call():
            return _call(expr, env)
        case t.Reduce():
            return _reduce(expr, env)
    raise AssertionError(f"no value rule for {type(expr).__name__}")


def _ref(ref: t.Ref, env: Mapping[str, Value]) -> Value:
    name = ref.name.text
    if not ref.indices:
        if name in env:
            return env[name]
        if name in ("true", "false"):
            return name == "true"
        if name == "all" and "n_layers" in env:
            return frozenset(range(int(env["n_layers"])))
        if name == "none":
            return frozenset()
    raise EvaluationError(f"`{name}` has no value here", name)


def _number(expr: t.Expr, env: Mapping[str, Value]) -> int | float:
    value = evaluate(expr, env)
    if isinstance(value, str | frozenset):
        raise EvaluationError(f"{value!r} is not a number")
    return value


# ---- operators ---------------------------------------------------------------------------------

_ARITHMETIC: dict[str, Callable[[int | float, int | float], int | float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: math.floor(a / b) if isinstance(a, float) or isinstance(b, float) else a // b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_SETS: dict[str, Callable[[frozenset[int], frozenset[int]], frozenset[int]]] = {
    "|": lambda a, b: a | b,
    "&": lambda a, b: a & b,
    "-": lambda a, b: a - b,
}


def _binary(expr: t.Binary, env: Mapping[str, Value]) -> Value:
    match expr.op:
        case "and":
            return bool(evaluate(expr.left, env)) and bool(evaluate(expr.right, env))
        case "or":
            return bool(evaluate(expr.left, env)) or bool(evaluate(expr.right, env))
        case "implies":
            return not evaluate(expr.left, env) or bool(evaluate(expr.right, env))
        case "==" | "!=":
            same = _side(expr.left, env) == _side(expr.right, env)
            return same if expr.op == "==" else not same
        case "in" | "not in":
            return (evaluate(expr.left, env) in _layers(expr.right, env)) is (expr.op == "in")
    left, right = evaluate(expr.left, env), evaluate(expr.right, env)
    if isinstance(left, frozenset) and isinstance(right, frozenset) and expr.op in _SETS:
        return _SETS[expr.op](left, right)
    try:
        return _ARITHMETIC[expr.op](left, right)
    except ZeroDivisionError:
        raise EvaluationError("division by zero") from None
    except OverflowError:
        raise EvaluationError("a number is too large") from None
    except (TypeError, KeyError):
        raise EvaluationError(f"`{expr.op}` does not apply to {left!r} and {right!r}") from None


def _side(expr: t.Expr, env: Mapping[str, Value]) -> Value:
    """One side of `==`: a word that names no value stands for itself."""
    if isinstance(expr, t.Ref) and not expr.indices and expr.name.text not in env:
        return expr.name.text if expr.name.text not in ("true", "false") else expr.name.text == "true"
    return evaluate(expr, env)


def _layers(expr: t.Expr, env: Mapping[str, Value]) -> frozenset[int]:
    value = evaluate(expr, env)
    if not isinstance(value, frozenset):
        raise EvaluationError("`in` needs a set of layers")
    return value


# ---- calls -------------------------------------------------------------------------------------


def _call(call: t.Call, env: Mapping[str, Value]) -> Value:
    name = call.name.text
    if name == "where":
        return evaluate(call.args[1 if evaluate(call.args[0], env) else 2], env)
    if name in ("min", "max") and len(call.args) == 1:
        layers = _layers(call.args[0], env)
        if not layers:
            raise EvaluationError(f"`{name}` of no layers")
        return min(layers) if name == "min" else max(layers)
    function = _FUNCTIONS.get(name)
    if function is None:
        raise EvaluationError(f"`{name}` has no value before a request runs", name)
    values = [_number(arg, env) for arg in call.args]
    try:
        return function(values, env)
    except (ValueError, OverflowError):
        raise EvaluationError(f"`{name}` has no value for {values}") from None


def page_size(env: Mapping[str, Value]) -> int:
    if "page_size" not in env:
        raise EvaluationError("`page_size` has no value here", "page_size")
    return int(env["page_size"])


def _levels(bits: int | float) -> int:
    if not 0 <= bits <= 64:
        raise EvaluationError(f"no code has {bits} bits")
    return 2 ** int(bits)


_FUNCTIONS: dict[str, Callable[[list[int | float], Mapping[str, Value]], int | float]] = {
    "min": lambda v, env: min(v),
    "max": lambda v, env: max(v),
    "floor": lambda v, env: math.floor(v[0]),
    "ceil": lambda v, env: math.ceil(v[0]),
    "round": lambda v, env: round(v[0]),
    "abs": lambda v, env: abs(v[0]),
    "relu": lambda v, env: max(v[0], 0),
    "exp": lambda v, env: math.exp(v[0]),
    "log": lambda v, env: math.log(v[0]),
    "sqrt": lambda v, env: math.sqrt(v[0]),
    "sigmoid": lambda v, env: 1 / (1 + math.exp(-v[0])),
    "clip": lambda v, env: min(max(v[0], v[1]), v[2]) if len(v) == 3 else max(v[0], v[1]),
    "levels": lambda v, env: _levels(v[0]),
    "pages": lambda v, env: math.floor(v[0] / page_size(env)) if isinstance(v[0], float) else v[0] // page_size(env),
    "pages_for": lambda v, env: math.ceil(v[0] / page_size(env)) if isinstance(v[0], float) else -(-v[0] // page_size(env)),
    "tokens": lambda v, env: v[0] * page_size(env),
}


def _reduce(node: t.Reduce, env: Mapping[str, Value]) -> Value:
    """`count[l in filters](1)`: the one reduction that needs no sequence."""
    sole = node.binders[0] if len(node.binders) == 1 else None
    if node.op.text == "count" and sole is not None and sole.letter.text == "l":
        layers = _layers(sole.within, env) if sole.within is not None else _ref(t.Ref(t.Ident("all")), env)
        return sum(1 for layer in layers if evaluate(node.args[0], {**env, "l": layer}))
    raise EvaluationError(f"`{node.op}` has no value before a request runs", node.op.text)
