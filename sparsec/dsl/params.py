"""Params of a checked method: what they may be, and values for what a user gave.

Text forms: `512`, `0.2`, `true`, `{0, 2}` or `0,2`, a name of a choice, and `25%` for a share of the prompt in tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from sparsec.dsl import scopes
from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.evaluate import EvaluationError, Value, evaluate
from sparsec.dsl.param_text import ParamError, Share, read
from sparsec.dsl.specialise import StaticValue, literal, static_params

__all__ = ["Given", "Param", "ParamError", "ParamTable", "Value"]

Given = str | int | float | bool | Iterable[int]
Facts = Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Param:
    """One declared param. static: its value is compiled in. choices: legal values of a choice, () for other units."""

    name: str
    unit: str
    static: bool
    choices: tuple[str, ...]
    doc: str | None
    item: t.Param

    def legal(self, env: Mapping[str, Value]) -> str:
        """What values are legal, in words, with limits computed where they can be."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bound = self.item.bound
        if bound is None:
            words = {"bool": "true or false", "layer_set": "layers, such as 0,2 or {0, 2}"}
            return words.get(self.unit, f"any number of {self.unit}")
        if not bound.is_range:
            return f"one of {', '.join(_shown(value, env) for value in bound.low.items)}"
        high = "" if bound.high is None else _shown(bound.high, env)
        return f"{self.unit} in {_shown(bound.low, env)}..{high}"


def _shown(expr: t.Expr, env: Mapping[str, Value]) -> str:
    try:
        return str(evaluate(expr, env))
    except EvaluationError as error:
        return f"({error})"


class ParamTable:
    """The params of one method, in the order of declaration."""

    def __init__(self, params: Iterable[Param]) -> None:
        self.params: dict[str, Param] = {param.name: param for param in params}

    @classmethod
    def of(cls, checked: Checked) -> ParamTable:
        static = static_params(checked.method)
        return cls(
            Param(item.name.text, item.unit.text, item.name.text in static, scopes.choices(item), item.doc, item)
            for item in checked.method.of(t.Param)
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.params)

    @property
    def static_names(self) -> tuple[str, ...]:
        return tuple(name for name, param in self.params.items() if param.static)

    @property
    def dynamic_names(self) -> tuple[str, ...]:
        return tuple(name for name, param in self.params.items() if not param.static)

    def resolve(self, given: Mapping[str, Given], model: Facts | None, prompt_len: int | None = None) -> dict[str, Value]:
        """A value for every param: what was given, and defaults computed from it. Raises ParamError.

        `prompt_len` (tokens) is needed for a share of the prompt; `model` for defaults that read model facts.
        """
        self.check_names(given)
        env: dict[str, Value] = dict(model or {})
        for name, param in self.params.items():
            if name in given:
                env[name] = self._given(param, given[name], env, prompt_len)
            else:
                env[name] = self._default(param, env)
                self._check_range(param, env[name], f"the default, {env[name]}", env)
        return {name: env[name] for name in self.params}

    def static_values(self, given: Mapping[str, Given]) -> dict[str, StaticValue]:
        """Values of the static params for `specialise`; a default that reads model facts stays an expression of them."""
        self.check_names(given)
        env: dict[str, Value] = {}
        found: dict[str, StaticValue] = {}
        for name, param in self.params.items():
            if name in given:
                if param.static or not _is_share(given[name]):
                    env[name] = self._given(param, given[name], env, None, early=True)
            else:
                try:
                    env[name] = evaluate_default(param, env)
                except EvaluationError:
                    if param.static:
                        found[name] = _closed(param.item.default, found)
                    continue
            if param.static:
                found[name] = _written(env[name])
        return found

    def check_given(self, given: Mapping[str, Given], model: Facts | None = None) -> None:
        """Raise ParamError for what is wrong with values before a request runs: names, units and every range that is known by then.

        A share of the prompt, and ranges that read it or facts of a model that is not named, are checked when a request arrives.
        """
        self.check_names(given)
        env: dict[str, Value] = dict(model or {})
        for name, param in self.params.items():
            waits = name in given and not param.static and _is_share(given[name])
            if waits:
                read(name, param.unit, param.choices, given[name], param.legal(env))
            elif name in given:
                env[name] = self._given(param, given[name], env, None, early=True)
            else:
                try:
                    env[name] = evaluate_default(param, env)
                except EvaluationError:
                    continue
                self._check_range(param, env[name], f"the default, {env[name]}", env, early=True)

    def check_names(self, given: Mapping[str, Given]) -> None:
        """Raise ParamError for a name that is no param of this method."""
        for name, value in given.items():
            if name not in self.params:
                near = scopes.nearest(name, frozenset(self.params))
                known = f"params: {', '.join(self.params)}" if self.params else "this method has no params"
                raise ParamError(name, value, f"did you mean `{near}`? ({known})" if near else known, "unknown param")

    # ---- one param -----------------------------------------------------------------------------

    def _given(
        self, param: Param, given: Given, env: Mapping[str, Value], prompt_len: int | None, early: bool = False
    ) -> Value:
        """`early`: before a request runs, so that a range may not be known yet."""
        legal = param.legal(env)
        value = read(param.name, param.unit, param.choices, given, legal)
        if isinstance(value, Share):
            value = self._share(param, given, value, env, prompt_len)
        layers = env.get("n_layers")
        if isinstance(value, frozenset) and layers is not None and max(value) >= layers:
            raise ParamError(param.name, given, f"layers below {layers}")
        self._check_range(param, value, str(given), env, early)
        return value

    def _share(self, param: Param, given: Given, share: Share, env: Mapping[str, Value], prompt_len: int | None) -> int:
        """That part of the prompt, rounded down, at least the lower bound."""
        if param.static:
            raise ParamError(param.name, given, f"{param.legal(env)}; it is compiled in and cannot follow the prompt")
        if prompt_len is None:
            raise ParamError(param.name, given, "a number, or a share of a prompt of known length")
        rows = int(share.part * prompt_len)
        bound = param.item.bound
        if bound is None or not bound.is_range:
            return rows
        low = evaluate(bound.low, env)
        assert isinstance(low, int), f"the lower bound of {param.name} is {low!r}"
        return max(rows, low)

    def _default(self, param: Param, env: Mapping[str, Value]) -> Value:
        try:
            return evaluate_default(param, env)
        except EvaluationError as error:
            hint = "name a model, or give a value" if error.missing else "give a value"
            reason = f"its default cannot be computed: {error}"
            raise ParamError(param.name, None, f"{param.legal(env)}; {hint}", reason) from None

    def _check_range(
        self, param: Param, value: Value, given: str, env: Mapping[str, Value], early: bool = False
    ) -> None:
        if param.unit == "layer_set":
            return  # judged where it was given: a default may name layers that a small model lacks
        bound = param.item.bound
        if bound is None or param.choices:
            return
        try:
            good = _inside(bound, value, env)
        except EvaluationError as error:
            if early and error.missing:
                return
            raise ParamError(param.name, given, f"a range that can be computed: {error}") from None
        if not good:
            raise ParamError(param.name, given, param.legal(env))


def evaluate_default(param: Param, env: Mapping[str, Value]) -> Value:
    """The default for given earlier params; a choice's default is its name."""
    if param.choices:
        assert isinstance(param.item.default, t.Ref), "the checker admits names only"
        return param.item.default.name.text
    value = evaluate(param.item.default, env)
    return float(value) if param.unit == "ratio" else value


def _inside(bound: t.Bound, value: Value, env: Mapping[str, Value]) -> bool:
    if not bound.is_range:
        return any(evaluate(item, env) == value for item in bound.low.items)
    return evaluate(bound.low, env) <= value and (bound.high is None or value <= evaluate(bound.high, env))


def _is_share(given: Given) -> bool:
    return isinstance(given, str) and given.strip().endswith("%")


def _written(value: Value) -> StaticValue:
    """A value as `specialise` takes it: a set of layers becomes the expression that writes it."""
    if isinstance(value, frozenset):
        return t.SetLiteral(tuple(t.Int(layer) for layer in sorted(value)))
    return value


def _closed(node: t.Node, values: Mapping[str, StaticValue]) -> t.Node:
    """The expression with params that have values replaced; model facts stay."""
    if isinstance(node, t.Ref) and not node.indices and node.name.text in values:
        return literal(values[node.name.text], node.span)
    changed: dict[str, object] = {}
    for entry in fields(node):
        part = getattr(node, entry.name)
        if isinstance(part, t.Node):
            changed[entry.name] = _closed(part, values)
        elif isinstance(part, tuple):
            changed[entry.name] = tuple(_closed(item, values) if isinstance(item, t.Node) else item for item in part)
    return replace(node, **changed)

