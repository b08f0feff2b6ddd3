"""Types of calls: scalar functions and set builders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsec.dsl import domains, names, scopes, units
from sparsec.dsl import tree as t
from sparsec.dsl.checked import UNKNOWN, Symbol, Type
from sparsec.dsl.operators import check_units
from sparsec.dsl.scopes import Scope
from sparsec.dsl.units import Unit

if TYPE_CHECKING:
    from sparsec.dsl.types import Typer

_PER_SEQUENCE = frozenset({"order", "rows", "rope", "gumbel", "error", "before", "itself"})  # never static
_WORD = Type("choice", static=True)


def infer_call(typer: Typer, call: t.Call, scope: Scope) -> Type:
    function = names.FUNCTIONS.get(call.name.text)
    if function is None:
        _unknown_function(typer, call)
        return UNKNOWN
    good = check_keywords(typer, call, function.keywords, (), scope)
    if not _check_count_of_arguments(typer, call, function):
        return UNKNOWN
    if call.name.text == "where":
        return _where(typer, call, scope)
    found = [_argument(typer, arg, _kind(function, index), call, scope) for index, arg in enumerate(call.args)]
    if not good or any(part.kind == "unknown" for part in found):
        return UNKNOWN
    return _result(typer, call, function, found)


def _kind(function: names.Function, index: int) -> str:
    return function.args[min(index, len(function.args) - 1)].rstrip("?*")


def _unknown_function(typer: Typer, call: t.Call) -> None:
    name = call.name.text
    if name in names.REDUCTIONS:
        help = f"write `{name}[t](...)`, with the index letters that it runs over"
        typer.ctx.report("S117", call.name, f"`{name}` is a reduction and needs an index", help)
    elif name in typer.ctx.symbols:
        kind = typer.ctx.symbols[name].kind
        typer.ctx.report("S117", call.name, f"`{name}` is a {kind}, not a function", f"write `{name}` without parentheses")
    else:
        known = (*names.FUNCTIONS, *names.REDUCTIONS)
        help, fixes = scopes.suggestion(typer.ctx, call.name, known, f"functions: {', '.join(names.FUNCTIONS)}")
        typer.ctx.report("S102", call.name, f"unknown function `{name}`", help, fixes)


def _check_count_of_arguments(typer: Typer, call: t.Call, function: names.Function) -> bool:
    given = len(call.args)
    if given >= function.least and (function.most is None or given <= function.most):
        return True
    shape = ", ".join(arg.rstrip("?*") for arg in function.args)
    message = f"`{call.name}` takes {_amount(function.least, function.most)}, {given} given"
    typer.ctx.report("S118", call, message, f"write `{call.name}({shape})`: {function.doc}")
    return False


def _amount(least: int, most: int | None) -> str:
    if most is None:
        return "two arguments or more"
    words = f"{least}" if least == most else f"{least} or {most}"
    return f"{words} argument{'' if most == 1 else 's'}"


def check_keywords(
    typer: Typer, node: t.Call | t.Reduce | t.Dtype, allowed: tuple[str, ...], required: tuple[str, ...], scope: Scope
) -> bool:
    """Are the keyword arguments known and of their kinds? Letters (`along`, `onto`) are judged by the caller."""
    name = node.op if isinstance(node, t.Reduce) else node.name
    good, seen = True, set()
    for keyword in node.keywords:
        word = keyword.name.text
        if word not in allowed:
            otherwise = f"`{name}` takes {scopes.listed(allowed)}" if allowed else f"`{name}` takes none"
            help, fixes = scopes.suggestion(typer.ctx, keyword.name, allowed, otherwise)
            typer.ctx.report("S106", keyword.name, f"unknown keyword argument `{word}` of `{name}`", help, fixes)
            good = False
        elif word in seen:
            typer.ctx.report("S110", keyword.name, f"`{word}` is given twice", "remove one of the two")
        else:
            good = _argument(typer, keyword.value, names.KEYWORD_KINDS[word], keyword, scope).kind != "unknown" and good
        seen.add(word)
    for word in required:
        if good and word not in seen:
            typer.ctx.report("S120", node, f"`{name}` needs `{word} = ...`", f"e.g. `{word} = {_EXAMPLES[word]}`")
            good = False
    return good


_EXAMPLES = {"width": "7", "onto": "r"}


# ---- arguments ---------------------------------------------------------------------------------


def _argument(typer: Typer, arg: t.Expr, kind: str, owner: t.Call | t.Keyword, scope: Scope) -> Type:
    match kind:
        case "number":
            if owner.name.text in ("min", "max") and len(owner.args) == 1:
                return _one_of_layers(typer, arg, owner, scope)
            return typer.infer_number(arg, scope)
        case "count":
            plain = isinstance(owner, t.Keyword)
            return typer.infer_count(arg, scope, "int" if plain else "tokens")
        case "bool":
            return typer.infer_bool(arg, scope)
        case "zone":
            return _zone(typer, arg)
        case "component":
            return _word(typer, arg, names.COMPONENTS, "component")
        case "letter":
            return _letter(typer, arg, owner, scope)
        case "word":
            return _word(typer, arg, _words(owner), "word")
    return typer.infer(arg, scope)


def _words(owner: t.Call | t.Keyword) -> tuple[str, ...]:
    """The words allowed, () where any word is."""
    if owner.name.text == "error":
        return tuple(names.TENSORS)
    return names.WORDS.get(owner.name.text, ())


def _one_of_layers(typer: Typer, arg: t.Expr, call: t.Call, scope: Scope) -> Type:
    found = typer.infer(arg, scope)
    if found.kind == "number":
        message = f"`{call.name}` of one number is that number"
        help = f"give two numbers, a set of layers, or write `{call.name}[t](...)` to reduce an index"
        typer.ctx.report("S118", call, message, help)
        return UNKNOWN
    return found if found.kind in ("layer_set", "unknown") else typer.mismatch(arg, found, "a number")


def _zone(typer: Typer, arg: t.Expr) -> Type:
    name = domains.bare(arg)
    symbol = typer.ctx.symbols.get(name or "")
    if symbol is not None and symbol.kind == "zone":
        typer.ctx.bindings[id(arg)] = symbol
        typer.ctx.types[id(arg)] = Type("zone", base=("t",))
        return typer.ctx.types[id(arg)]
    zones = tuple(zone.name.text for zone in typer.ctx.method.of(t.Zone))
    scopes.unknown_zone(typer.ctx, arg.name if isinstance(arg, t.Ref) else None, arg, zones)
    return UNKNOWN


def _word(typer: Typer, arg: t.Expr, allowed: tuple[str, ...], kind: str) -> Type:
    name = domains.bare(arg)
    if name is None or allowed and name not in allowed:
        help, fixes = f"known: {', '.join(allowed)}" if allowed else "write a bare name", ()
        if name is not None:
            help, fixes = scopes.suggestion(typer.ctx, arg.name, allowed, help)
        typer.ctx.report("S101", arg, f"unknown {kind} `{name}`" if name else f"a {kind} is needed here", help, fixes)
        return UNKNOWN
    typer.ctx.bindings[id(arg)] = Symbol(name, "word")
    typer.ctx.types[id(arg)] = _WORD
    return _WORD


def _letter(typer: Typer, arg: t.Expr, owner: t.Call | t.Keyword, scope: Scope) -> Type:
    letter = domains.letter_of(typer.ctx, arg)
    if letter is None:
        if isinstance(arg, t.Ref) and not arg.indices:
            domains.unknown_letter(typer.ctx, arg.name)
        else:
            typer.ctx.report("S203", arg, "an index letter is needed here", "e.g. `t`")
        return UNKNOWN
    domain = typer.ctx.letters[letter]
    fitting = {"order": ("token", "query"), "before": ("token", "query"), "itself": ("token", "query")}
    wanted = fitting.get(owner.name.text)
    if wanted is not None and domain not in wanted:
        message = f"`{letter}` ranges over {domain}, but `{owner.name}` takes a token"
        typer.ctx.report("S206", arg, message, "letters of token: t, s")
        return UNKNOWN
    return typer.infer(arg, scope)


# ---- results -----------------------------------------------------------------------------------


def _where(typer: Typer, call: t.Call, scope: Scope) -> Type:
    condition = typer.infer_bool(call.args[0], scope)
    first, second = (typer.infer(arg, scope) for arg in call.args[1:])
    if {first.kind, second.kind} & {"set", "zone"}:
        first, second = (typer.infer_set(arg, scope) for arg in call.args[1:])
        return _where_sets(typer, call, condition, first, second)
    if "unknown" in (condition.kind, first.kind, second.kind):
        return UNKNOWN
    if first.kind != second.kind:
        wanted = {"number": "a number", "bool": "true or false", "layer_set": "a set of layers", "choice": "a choice"}
        return typer.mismatch(call.args[2], second, wanted[first.kind])
    domains.check_branches(typer.ctx, call, (first, second))
    free = condition.free | first.free | second.free
    static = condition.static and first.static and second.static
    if first.kind != "number":
        return Type(first.kind, free, first.base, static=static)
    a, b = typer.unit_of(call.args[1]), typer.unit_of(call.args[2])
    if not check_units(typer, call, a, b, "an alternative to"):
        return UNKNOWN
    return typer.number(call, units.join(a, b), free, static)


def _where_sets(typer: Typer, call: t.Call, condition: Type, first: Type, second: Type) -> Type:
    if "unknown" in (condition.kind, first.kind, second.kind):
        return UNKNOWN
    base = typer.common_base(first.base, second.base)
    if base is None or "layer_set" in (first.kind, second.kind):
        message = f"one branch is a set over {scopes.listed(first.base)}, the other one over {scopes.listed(second.base)}"
        typer.ctx.report("S212", call, message, "both branches of `where` must range over the same things")
        return UNKNOWN
    for arg in call.args[1:]:
        typer.settle(arg, base)
    domains.check_branches(typer.ctx, call, (first, second))
    return Type("set", condition.free | first.free | second.free, base)


def _result(typer: Typer, call: t.Call, function: names.Function, found: list[Type]) -> Type:
    free = frozenset().union(*(part.free for part in found))
    if function.result == "set":
        return Type("set", free, function.base)
    static = function.name not in _PER_SEQUENCE and all(part.static for part in found)
    unit = _unit(typer, call, function.name)
    return UNKNOWN if unit is None else typer.number(call, unit, free, static)


def _unit(typer: Typer, call: t.Call, name: str) -> Unit | None:
    """Unit of a function's value; None after a report."""
    given = [typer.unit_of(arg) for arg in call.args]
    match name:
        case "min" | "max" | "clip":
            return _joined(typer, call, given)
        case "floor" | "ceil" | "round":
            return units.rounded(given[0])
        case "abs" | "relu":
            return given[0]
        case "exp" | "log" | "sqrt" | "sigmoid":
            return units.PLAIN if given[0].dim is None else units.FRACTION
        case "rows" | "order":
            return units.TOKENS
        case "pages" | "pages_for":
            return _converted(typer, call, given[0], "tokens", units.PAGES)
        case "tokens":
            return _converted(typer, call, given[0], "pages", units.TOKENS)
        case "levels" | "model_fact":
            return units.WHOLE
    return units.PLAIN


def _joined(typer: Typer, call: t.Call, given: list[Unit]) -> Unit | None:
    if len(given) == 1:  # a set of layers
        return units.WHOLE
    unit = given[0]
    for arg, other in zip(call.args[1:], given[1:], strict=True):
        if not check_units(typer, arg, unit, other, "compared with"):
            return None
        unit = units.join(unit, other)
    return unit


def _converted(typer: Typer, call: t.Call, given: Unit, wanted: str, unit: Unit) -> Unit | None:
    if given.dim in (wanted, "int"):
        return unit
    what = given.dim or "the value of a tensor"
    message = f"`{call.name}` converts {wanted}, but this is {what}"
    typer.ctx.report("S304", call.args[0], message, f"give a number of {wanted}")
    return None
