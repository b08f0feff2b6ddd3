"""Types and equations of everything outside the hooks: params, domains, weights, layers, zones, states, summaries."""

from __future__ import annotations

from sparsec.dsl import domains, names, scopes, units
from sparsec.dsl import tree as t
from sparsec.dsl.checked import UNKNOWN, Symbol, Type
from sparsec.dsl.dtypes import check_dtype, type_of_dtype
from sparsec.dsl.operators import check_choice_value, check_units
from sparsec.dsl.scopes import Scope
from sparsec.dsl.types import Typer
from sparsec.dsl.units import Unit

_STATIC = Scope("static")
_EQUATION = Scope("equation")


def check_declarations(typer: Typer) -> None:
    """Declared types first, so that equations may name each other in any order."""
    method = typer.ctx.method
    _check_params(typer)
    for item in method.of(t.Domain):
        _check_domain(typer, item)
    for item in method.of(t.Layers):
        _want_layers(typer, item.value, _STATIC)
    _declare_types(typer)
    for item in method.of(t.Weight):
        _check_weight(typer, item)
    for item in method.of(t.State):
        check_update(typer, item.target, item.initial, _EQUATION)
    for item in method.of(t.Summary):
        _check_equation(typer, item.target, item.value)
    for zone in method.of(t.Zone):
        for part in zone.body:
            _check_equation(typer, part.target, part.value, spare=int(_is_index(part)))
    for item in method.of(t.Schedule):
        _check_schedule(typer, item)


# ---- params ------------------------------------------------------------------------------------


def _check_params(typer: Typer) -> None:
    earlier: set[str] = set()
    for item in typer.ctx.method.of(t.Param):
        scope = Scope("param", params=frozenset(earlier))
        earlier.add(item.name.text)
        match item.unit.text:
            case "choice":
                if scopes.choices(item):
                    for value in (item.bound.low, *item.bound.low.items):
                        typer.ctx.types[id(value)] = Type("choice", static=True)
                check_choice_value(typer, item, item.default)
            case "bool":
                typer.infer_bool(item.default, scope)
            case "layer_set":
                _want_layers(typer, item.default, scope)
            case unit if unit in names.UNITS:
                _check_number_param(typer, item, units.of_param(unit), scope)


def _check_number_param(typer: Typer, item: t.Param, unit: Unit, scope: Scope) -> None:
    bound = item.bound
    limits = () if bound is None else (bound.low,) if bound.high is None else (bound.low, bound.high)
    if bound is not None and not bound.is_range:
        limits = bound.low.items if isinstance(bound.low, t.SetLiteral) else ()
        if not limits:
            help = "write `in low..high`, `in low..` or `in {a, b}`"
            typer.ctx.report("S114", bound, f"the range of `{item.name}` has no end", help)
    for expr in (*limits, item.default):
        found = typer.infer_number(expr, scope)
        if found.kind == "unknown":
            continue
        given = typer.unit_of(expr)
        if not units.compatible(given, unit):
            check_units(typer, expr, given, unit, f"the value of `{item.name}`, which is in")
        elif unit.whole and not given.whole:
            typer.check_count(expr, unit.dim)
    if bound is not None and isinstance(bound.low, t.SetLiteral):
        typer.ctx.types[id(bound.low)] = Type("set", static=True)


def _want_layers(typer: Typer, expr: t.Expr, scope: Scope) -> None:
    found = typer.infer_set(expr, scope)
    if found.kind == "set" and not found.base:
        typer.settle(expr, ("l",))
    elif found.kind not in ("layer_set", "unknown"):
        typer.mismatch(expr, found, "a set of layers")


# ---- domains and weights -------------------------------------------------------------------------


def _check_domain(typer: Typer, item: t.Domain) -> None:
    if item.base is not None:
        known = {*names.LETTERS.values(), *(other.name.text for other in typer.ctx.method.of(t.Domain))}
        if item.base.text not in known:
            scopes.unknown(typer.ctx, "S101", "domain", item.base, sorted(known))
    if item.by is not None:
        found = typer.infer_number(item.by, _EQUATION)
        grouped = {typer.ctx.letters[letter] for letter in found.free}
        if found.kind != "unknown" and found.free and item.base.text not in grouped:
            message = f"`{item.name}` groups {item.base}, but this has no index of {item.base}"
            fitting = [letter for letter, domain in names.LETTERS.items() if domain == item.base.text]
            typer.ctx.report("S206", item.by, message, f"letters of {item.base}: {', '.join(fitting)}")
    typer.infer_count(item.upto, _STATIC, "int")


def _check_weight(typer: Typer, item: t.Weight) -> None:
    seen: set[str] = set()
    for letter in item.letters:
        if letter.text not in typer.ctx.letters:
            domains.unknown_letter(typer.ctx, letter)
        elif letter.text in seen:
            help = "use two letters of the same domain"
            typer.ctx.report("S208", letter, f"`{letter}` occurs twice in `{item.name}`", help)
        seen.add(letter.text)
    check_dtype(typer, item.dtype, tuple(letter.text for letter in item.letters), "weight")
    if item.value is not None:
        found = typer.infer_number(item.value, _STATIC)
        for stray in sorted(found.free - seen):
            message = f"`{stray}` ({typer.ctx.letters[stray]}) is free on the right but no index of `{item.name}`"
            typer.ctx.report("S201", item.name, message, f"add `{stray}` to the indices")


# ---- states, summaries, stores -------------------------------------------------------------------


def _declare_types(typer: Typer) -> None:
    for item in (*typer.ctx.method.of(t.State), *typer.ctx.method.of(t.Summary)):
        kind = "state" if isinstance(item, t.State) else "summary"
        _declare_type(typer, item.target, item.dtype, kind)
    for zone in typer.ctx.method.of(t.Zone):
        for part in zone.body:
            _declare_type(typer, part.target, part.dtype if isinstance(part, t.Store) else None, "store")


def _declare_type(typer: Typer, target: t.Ref, dtype: t.Dtype | None, kind: str) -> None:
    """Type of a declared name as a whole; its dtype must be one that the declaration may have."""
    ctx = typer.ctx
    letters = domains.target_known(ctx, target)
    for index in target.indices:
        name = domains.bare(index)
        if name in ctx.letters:
            ctx.bindings[id(index)] = Symbol(name, "letter")
            ctx.types[id(index)] = typer.number(index, units.WHOLE, frozenset({name}))
    if letters is None:
        ctx.types[id(target)] = UNKNOWN
        return
    if dtype is None:
        ctx.types[id(target)] = _decoded_type(typer, target, letters)
        return
    good = check_dtype(typer, dtype, letters, kind)
    ctx.types[id(target)] = type_of_dtype(typer, target, dtype, frozenset(letters)) if good else UNKNOWN


def _decoded_type(typer: Typer, target: t.Ref, letters: tuple[str, ...]) -> Type:
    """A decode defines one of the language's tensors, with its indices in order, or a name of its own."""
    tensor = names.TENSORS.get(target.name.text)
    if tensor is not None:
        if not domains.check_arity(typer.ctx, target, tensor.letters):
            return UNKNOWN
        for index, letter, wanted in zip(target.indices, letters, tensor.letters, strict=True):
            if not domains.check_index_domain(typer.ctx, target, index, letter, wanted):
                return UNKNOWN
    return typer.number(target, units.PLAIN, frozenset(letters))


def _is_index(part: t.Store | t.Decode) -> bool:
    return isinstance(part, t.Store) and part.dtype.name.text == "index"


def _check_equation(typer: Typer, target: t.Ref, value: t.Expr, spare: int = 0) -> None:
    """A definition: the value has exactly the letters of the left side."""
    whole = typer.ctx.type_of(target)
    found = typer.infer_set(value, _EQUATION) if spare else typer.infer(value, _EQUATION)
    if found.kind == "bool" and not spare:
        typer.set_unit(value, units.WHOLE)  # one bit
    elif not spare:
        found = typer.want(value, found, "number")
    letters = domains.target_known(typer.ctx, target)
    if letters is not None and whole.kind != "unknown":
        domains.check_equation(typer.ctx, target, letters, found, spare)


def check_update(
    typer: Typer, target: t.Ref, value: t.Expr, scope: Scope, letters: tuple[str, ...] | None = None
) -> None:
    """An initial value or an assignment of a state: the kind of the state, its letters, or a constant."""
    whole = typer.ctx.type_of(target)
    constant = False
    if whole.kind == "set":
        found = typer.infer_set(value, scope)
        constant = found.kind == "set" and not found.base  # all, none
        typer.settle(value, whole.base)
        found = typer.ctx.type_of(value)
        if found.kind in ("set", "zone") and typer.common_base(found.base, whole.base) != found.base:
            own, given = scopes.listed(whole.base), scopes.listed(found.base)
            message = f"`{target.name}` is a set over {own}, this is one over {given}"
            typer.ctx.report("S212", value, message, "rank over the letter of the state's `set[...]`")
            return
    elif whole.kind == "bool":
        found = typer.infer_bool(value, scope)
    else:
        found = typer.infer_number(value, scope)
    if letters is None:
        letters = domains.target_known(typer.ctx, target)
    constant = constant or found.static and not found.free
    if letters is not None and whole.kind != "unknown":
        domains.check_equation(typer.ctx, target, letters, found, len(letters) if constant else 0)


def _check_schedule(typer: Typer, item: t.Schedule) -> None:
    for entry in item.entries:
        kind = names.SCHEDULE.get(entry.name.text)
        if kind is None:
            scopes.unknown(typer.ctx, "S116", "schedule entry", entry.name, tuple(names.SCHEDULE))
        elif kind == "count":
            typer.infer_count(entry.value, _STATIC)
        elif kind == "number":
            typer.infer_number(entry.value, _STATIC)
        elif kind == "bool":
            typer.infer_bool(entry.value, _STATIC)
        elif domains.bare(entry.value) not in names.WORDS[entry.name.text]:
            known = ", ".join(names.WORDS[entry.name.text])
            typer.ctx.report("S116", entry.value, f"unknown value of `{entry.name}`", f"known: {known}")
        else:
            typer.ctx.types[id(entry.value)] = Type("choice", static=True)
