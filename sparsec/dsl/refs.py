"""References: what a name means where it stands, and the type of `name[indices]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsec.dsl import domains, names, scopes, units
from sparsec.dsl import tree as t
from sparsec.dsl.checked import UNKNOWN, Symbol, Type
from sparsec.dsl.scopes import Scope

if TYPE_CHECKING:
    from sparsec.dsl.types import Typer

_STATIC_FACTS = frozenset(name for name, fact in names.FACTS.items() if fact.model)
_SIZE_FACTS = _STATIC_FACTS | {"len", "chunk"}  # capacities of domains may follow the sequence


def infer_ref(typer: Typer, ref: t.Ref, scope: Scope) -> Type:
    symbol = resolve(typer, ref, scope)
    if symbol is None:
        for index in ref.indices:
            typer.ctx.types[id(index)] = UNKNOWN
        return UNKNOWN
    typer.ctx.bindings[id(ref)] = symbol
    if not domains.check_arity(typer.ctx, ref, symbol.letters):
        return UNKNOWN
    free = _index_letters(typer, ref, symbol, scope)
    return UNKNOWN if free is None else _typed(typer, ref, symbol, free)


# ---- what a name means -------------------------------------------------------------------------


def resolve(typer: Typer, ref: t.Ref, scope: Scope) -> Symbol | None:
    """The symbol of a name, or None after a report."""
    ctx, name = typer.ctx, ref.name.text
    if name in scope.lets:
        return scope.lets[name]
    if name in ctx.symbols:
        return _declared(typer, ref, ctx.symbols[name], scope)
    if name in ctx.letters:
        return Symbol(name, "letter")
    builtin = _builtin(name)
    if builtin is not None:
        return builtin if _available(typer, ref, builtin, scope) else None
    if scope.place == "ensure" and name in ctx.lets:
        return _let_of_a_hook(typer, ref)
    _unresolved(typer, ref, scope)
    return None


def _builtin(name: str) -> Symbol | None:
    if name in names.TENSORS:
        return Symbol(name, "tensor", names.TENSORS[name].letters)
    if name in names.FACTS:
        return Symbol(name, "fact")
    if name in names.SETS:
        return Symbol(name, "builtin_set")
    return Symbol(name, "constant") if name in names.CONSTANTS else None


def _declared(typer: Typer, ref: t.Ref, symbol: Symbol, scope: Scope) -> Symbol | None:
    name = symbol.name
    if symbol.kind == "domain":
        letter = symbol.letters[0]
        typer.ctx.report("S117", ref, f"`{name}` is a domain, not a value", f"its index letter is `{letter}`")
        return None
    if scope.params is not None and symbol.kind == "param" and name not in scope.params:
        help = f"move the declaration of `{name}` above this one"
        typer.ctx.report("S112", ref, f"`{name}` is not declared before this param", help)
        return None
    readable = {"param": ("param",), "static": ("param", "layers")}.get(scope.place)
    if readable is not None and symbol.kind not in readable:
        help = "only params declared before, numbers and model facts have a value here"
        typer.ctx.report("S119", ref, f"the {symbol.kind} `{name}` has no value here", help)
        return None
    return symbol


def _available(typer: Typer, ref: t.Ref, symbol: Symbol, scope: Scope) -> bool:
    name = symbol.name
    if name in names.ENSURE_ONLY and scope.place != "ensure":
        typer.ctx.report("S119", ref, f"`{name}` can be read in `ensure` only", "here, use the sets that the hook defines")
        return False
    facts = {"param": _STATIC_FACTS, "static": _SIZE_FACTS}.get(scope.place)
    if facts is None or symbol.kind == "constant" or name in facts:
        return True
    if symbol.kind == "builtin_set" and name in ("all", "none"):
        return True
    help = f"model facts have one: {', '.join(sorted(_STATIC_FACTS))}"
    typer.ctx.report("S119", ref, f"`{name}` has no value here, before any request runs", help)
    return False


def _let_of_a_hook(typer: Typer, ref: t.Ref) -> Symbol | None:
    """In an ensure: the let of that name, if all hooks that define it agree on its letters."""
    known = typer.ctx.lets[ref.name.text]
    if len({symbol.letters for symbol in known}) > 1:
        help = "give the two lets different names"
        typer.ctx.report("S113", ref, f"several hooks define a let `{ref.name}`, with different letters", help)
        return None
    return known[0]


def _unresolved(typer: Typer, ref: t.Ref, scope: Scope) -> None:
    ctx, name = typer.ctx, ref.name.text
    if name == scope.defining:
        return  # S507 says that it reads itself
    if name in scope.later_lets:
        ctx.report("S113", ref, f"`{name}` is read before its `let`, or outside the block that defines it",
                   "statements run in order, and a `let` is visible to the end of its block")  # fmt: skip
        return
    if name in ctx.lets:
        line = ctx.lets[name][0].item.span.line
        ctx.report("S113", ref, f"the let `{name}` belongs to another hook (line {line})",
                   "repeat the `let` here, or keep the value in a `state`")  # fmt: skip
        return
    owner = scopes.choice_with(ctx, name)
    if owner is not None or name in names.REDUCTIONS:
        what = f"a value of the choice `{owner.name}`" if owner else "a reduction"
        help = f"compare the choice: `{owner.name} == {name}`" if owner else f"write `{name}[t](...)`"
        ctx.report("S117", ref, f"`{name}` is {what}, and means nothing alone", help)
        return
    known = {*ctx.symbols, *scope.lets, *names.TENSORS, *names.FACTS, *names.SETS, *names.CONSTANTS}
    otherwise = None
    if name in names.FUNCTIONS:
        otherwise = f"`{name}` is a function: write `{name}(...)`"
    elif len(name) == 1:
        otherwise = "index letters are i t s p h g c d l x y and those declared with `domain`"
    declare = "declare it as a `param` or `state`, or define it before with `let`"
    help, fixes = (otherwise, ()) if otherwise else scopes.suggestion(typer.ctx, ref.name, known, declare)
    ctx.report("S101", ref.name, f"unknown name `{name}`", help, fixes)


# ---- indices -----------------------------------------------------------------------------------


def _index_letters(typer: Typer, ref: t.Ref, symbol: Symbol, scope: Scope) -> frozenset[str] | None:
    """Free letters that the indices of a reference contribute; None after a report."""
    free: set[str] = set()
    if any(wanted not in typer.ctx.letters for wanted in symbol.letters):
        return None  # reported at the declaration
    good = True
    for index, wanted in zip(ref.indices, symbol.letters, strict=True):
        letter = domains.letter_of(typer.ctx, index)
        if letter is None:
            found = _computed_index(typer, ref, index, wanted, scope)
            good = good and found is not None
            free |= found or frozenset()
            continue
        typer.infer(index, scope)
        if not domains.check_index_domain(typer.ctx, ref, index, letter, wanted):
            good = False
        elif letter in free:
            typer.ctx.report("S208", index, f"`{letter}` is used for two indices of `{ref.name}`",
                             "use two letters of the same domain, such as `t` and `s`")  # fmt: skip
            good = False
        free.add(letter)
    return frozenset(free) if good else None


def _computed_index(typer: Typer, ref: t.Ref, index: t.Expr, wanted: str, scope: Scope) -> frozenset[str] | None:
    """An index that is no letter: a layer, or rows named by an `index` store."""
    domain = typer.ctx.letters[wanted]
    name = domains.bare(index)
    if name is not None and len(name) == 1 and name not in scope.lets and name not in typer.ctx.symbols:
        domains.unknown_letter(typer.ctx, index.name)
        typer.ctx.types[id(index)] = UNKNOWN
        return None
    found = typer.infer_number(index, scope)
    if found.kind == "unknown":
        return None
    if domain == "layer" and found.static and typer.unit_of(index).whole:
        return found.free
    if domain == "token" and isinstance(index, t.Ref) and _is_gather(typer.ctx.symbol_of(index)):
        return found.free
    help = "one layer may be picked as `[layer]`; rows may be picked by a store of dtype `index(zone)`"
    typer.ctx.report("S203", index, f"this index of `{ref.name}` must be a letter that ranges over {domain}", help)
    return None


def _is_gather(symbol: Symbol | None) -> bool:
    return symbol is not None and isinstance(symbol.item, t.Store) and symbol.item.dtype.name.text == "index"


# ---- types -------------------------------------------------------------------------------------


def _typed(typer: Typer, ref: t.Ref, symbol: Symbol, free: frozenset[str]) -> Type:
    match symbol.kind:
        case "letter":
            return _letter(typer, ref, symbol.name)
        case "tensor":
            tensor = names.TENSORS[symbol.name]
            return typer.number(ref, units.TOKENS if tensor.unit else units.PLAIN, free)
        case "fact":
            fact = names.FACTS[symbol.name]
            if fact.kind == "bool":
                return Type("bool", static=fact.static)
            return typer.number(ref, units.Unit(fact.unit, fact.unit is not None), static=fact.static)
        case "builtin_set":
            return Type("set", base=names.SETS[symbol.name].base)
        case "constant":
            return Type("bool", static=True)
        case "param":
            return _param(typer, ref, symbol.item)
        case "layers":
            return Type("layer_set", base=("l",), static=True)
        case "zone":
            return Type("zone", base=("t",))
        case "weight":
            return typer.number(ref, units.PLAIN, free)
    return _defined(typer, ref, symbol, free)


def _letter(typer: Typer, ref: t.Ref, letter: str) -> Type:
    item = domains.domain_item(typer.ctx, letter)
    sized = typer.ctx.letters[letter] in names.STATIC_DOMAINS or item is not None and item.kind == "fixed"
    return typer.number(ref, units.WHOLE, frozenset({letter}), static=sized)


def _param(typer: Typer, ref: t.Expr, item: t.Param) -> Type:
    match item.unit.text:
        case "bool":
            return Type("bool", static=True)
        case "choice":
            return Type("choice", static=True)
        case "layer_set":
            return Type("layer_set", base=("l",), static=True)
        case unit if unit in names.UNITS:
            return typer.number(ref, units.of_param(unit), static=True)
    return UNKNOWN


def _defined(typer: Typer, ref: t.Ref, symbol: Symbol, free: frozenset[str]) -> Type:
    """A state, summary, store, decode or let: the declared type with this reference's letters."""
    target = symbol.item.target
    whole = typer.ctx.type_of(target)
    if whole.kind == "number":
        return typer.number(ref, typer.unit_of(target), free, whole.static)
    return whole if whole.kind == "unknown" else Type(whole.kind, free, whole.base, None, whole.static)
