"""Names: who declares what, which names clash, and what an unknown name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from sparsec.diagnostics import Fix
from sparsec.dsl import names
from sparsec.dsl import tree as t
from sparsec.dsl.checked import Symbol
from sparsec.dsl.context import Context


_LONG = 64  # characters of a name that is compared with others
_COMPARISONS = 10_000  # per file


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an expression stands. place: "param", "static", "equation", "hook" or "ensure"."""

    place: str
    lets: dict[str, Symbol] = field(default_factory=dict)
    bound: frozenset[str] = frozenset()  # letters bound by the reductions around
    params: frozenset[str] | None = None  # in a param's range or default: the params declared before it
    later_lets: frozenset[str] = frozenset()  # lets of this hook that are not defined yet, or in another block
    defining: str | None = None  # the let whose value this is

    def binding(self, letters: Iterable[str]) -> Scope:
        return replace(self, bound=self.bound | frozenset(letters))


@lru_cache(maxsize=512)
def nearest(word: str, known: frozenset[str]) -> str | None:
    """The known word that an unknown one may have meant."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return near[0] if near else None


def suggestion(
    ctx: Context, ident: t.Ident, known: Iterable[str], otherwise: str | None = None
) -> tuple[str | None, tuple[Fix, ...]]:
    """Help line and fix for an unknown name; `otherwise` is the help where nothing is near.

    Comparing names is slow, so a file full of unknown names gets suggestions for the first of them only.
    """
    words = frozenset(known)
    ctx.comparisons += len(words)
    ctx.unknown_names.add(ident.text)
    if len(ident.text) > _LONG or ctx.comparisons > _COMPARISONS:
        return otherwise, ()
    near = nearest(ident.text, words)
    if near is None:
        return otherwise, ()
    certain = difflib.SequenceMatcher(None, ident.text, near).ratio() >= 0.75
    return f"did you mean `{near}`?", (Fix(ident.span, near),) if certain else ()


def may_be_meant(ctx: Context, name: str) -> bool:
    """Whether a name that did not resolve, and was reported, may have meant this one."""
    ctx.comparisons += len(ctx.unknown_names)
    if ctx.comparisons > _COMPARISONS:
        return bool(ctx.unknown_names)
    return bool(difflib.get_close_matches(name, sorted(ctx.unknown_names), n=1, cutoff=0.6))


def listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def unknown(ctx: Context, code: str, kind: str, ident: t.Ident, known: Iterable[str]) -> None:
    """Report a word that is none of a closed list."""
    known = tuple(known)
    help, fixes = suggestion(ctx, ident, known, f"known: {', '.join(known)}")
    ctx.report(code, ident, f"unknown {kind} `{ident}`", help, fixes)


def unknown_zone(ctx: Context, ident: t.Ident | None, where: t.Node, zones: tuple[str, ...]) -> None:
    """Report S107 for a name, or an expression, that is no declared zone."""
    otherwise = f"zones: {', '.join(zones)}" if zones else "this method declares no zone"
    help, fixes = suggestion(ctx, ident, zones, otherwise) if ident is not None else (otherwise, ())
    message = f"unknown zone `{ident}`" if ident is not None else "a zone is needed here"
    ctx.report("S107", where, message, help, fixes)


def reserved(name: str) -> str | None:
    """What the language means by a value name, or None where it is free for the author."""
    for table, kind in (
        (names.LETTERS, "an index letter"),
        (names.TENSORS, "a tensor"),
        (names.FACTS, "a fact"),
        (names.SETS, "a set"),
        (names.CONSTANTS, "a constant"),
    ):
        if name in table:
            return kind
    return None


# ---- declarations ----------------------------------------------------------------------------


def declare(ctx: Context) -> None:
    """Enter every declaration of the method; lets are entered hook by hook, later."""
    ctx.letters.update(names.LETTERS)
    for item in ctx.method.of(t.Domain):
        _declare_domain(ctx, item)
    for item in ctx.method.items:
        match item:
            case t.Param():
                _enter(ctx, item.name, Symbol(item.name.text, "param", (), item))
                _check_unit(ctx, item)
            case t.Layers():
                _enter(ctx, item.name, Symbol(item.name.text, "layers", (), item))
            case t.Weight():
                letters = tuple(letter.text for letter in item.letters)
                _enter(ctx, item.name, Symbol(item.name.text, "weight", letters, item))
            case t.Zone():
                _declare_zone(ctx, item)
            case t.State():
                _declare_tensor(ctx, item.target, "state", item)
            case t.Summary():
                _declare_tensor(ctx, item.target, "summary", item)
            case t.Invariant():
                if item.name.text not in names.INVARIANTS:
                    unknown(ctx, "S116", "invariant", item.name, names.INVARIANTS)
            case t.Hook():
                _check_hook_names(ctx, item)


def _enter(ctx: Context, ident: t.Ident, symbol: Symbol) -> None:
    taken = reserved(ident.text)
    if taken is not None:
        help = "choose another name; functions such as `recent(n)` do not clash with values"
        ctx.report("S111", ident, f"`{ident}` is {taken} of the language", help)
    elif ident.text in ctx.letters:
        help = "choose another name or another letter"
        ctx.report("S111", ident, f"`{ident}` is the index letter of domain `{ctx.letters[ident.text]}`", help)
    elif ident.text in ctx.symbols:
        first = ctx.symbols[ident.text]
        where = f" at line {first.item.span.line}" if first.item is not None else ""
        ctx.report("S110", ident, f"`{ident}` is declared twice: it is a {first.kind}{where}", "rename one of the two")
    else:
        ctx.symbols[ident.text] = symbol


def _declare_domain(ctx: Context, item: t.Domain) -> None:
    letter = item.letter.text
    if letter in ctx.letters:
        help = "choose a letter that is not used yet"
        ctx.report("S110", item.letter, f"letter `{letter}` already ranges over {ctx.letters[letter]}", help)
        return
    _enter(ctx, item.name, Symbol(item.name.text, "domain", (letter,), item))
    ctx.letters[letter] = item.name.text


def _declare_tensor(ctx: Context, target: t.Ref, kind: str, item: t.Node) -> None:
    _enter(ctx, target.name, Symbol(target.name.text, kind, target_letters(target), item))


def _declare_zone(ctx: Context, zone: t.Zone) -> None:
    _enter(ctx, zone.name, Symbol(zone.name.text, "zone", (), zone))
    if zone.tier is not None and zone.tier.text not in names.TIERS:
        unknown(ctx, "S108", "memory tier", zone.tier, names.TIERS)
    seen: set[str] = set()
    for part in zone.body:
        name = part.target.name.text
        if name in names.TENSORS and isinstance(part, t.Decode):
            if name in seen:
                ctx.report("S110", part.target.name, f"zone `{zone.name}` decodes `{name}` twice", "keep one of the two")
            seen.add(name)
        else:
            _declare_tensor(ctx, part.target, "store" if isinstance(part, t.Store) else "decode", part)


def target_letters(target: t.Ref) -> tuple[str, ...]:
    """The letters of a declared or assigned name; what is no bare name is left out (reported by domains.py)."""
    return tuple(index.name.text for index in target.indices if isinstance(index, t.Ref) and not index.indices)


def _check_unit(ctx: Context, item: t.Param) -> None:
    if item.unit.text not in names.UNITS:
        unknown(ctx, "S104", "unit", item.unit, names.UNITS)
    elif item.unit.text == "choice":
        _check_choices(ctx, item)
    elif item.unit.text == "bool" and item.bound is not None:
        ctx.report("S114", item.bound, f"`{item.name}` is a bool and needs no range", "remove `in ...`")


def _check_choices(ctx: Context, item: t.Param) -> None:
    if item.bound is None or item.bound.is_range or not isinstance(item.bound.low, t.SetLiteral):
        where = item.bound or item.name
        ctx.report("S114", where, f"the choice `{item.name}` does not say between what", "write `in {first, second}`")
        return
    seen: set[str] = set()
    for value in item.bound.low.items:
        if not isinstance(value, t.Ref) or value.indices:
            ctx.report("S114", value, "a value of a choice is a name", "for numbers use `int in {1, 2}`")
        elif value.name.text in seen:
            ctx.report("S114", value, f"`{value.name}` occurs twice in the choice `{item.name}`", "remove one")
        else:
            seen.add(value.name.text)


def choices(item: t.Param) -> tuple[str, ...]:
    """The names of a choice param, in the order written; () for other units."""
    if item.unit.text != "choice" or item.bound is None or not isinstance(item.bound.low, t.SetLiteral):
        return ()
    return tuple(v.name.text for v in item.bound.low.items if isinstance(v, t.Ref) and not v.indices)


def choice_with(ctx: Context, word: str) -> t.Param | None:
    """The first choice param that may have this value."""
    if ctx.choices is None:
        ctx.choices = {value: item for item in reversed(ctx.method.of(t.Param)) for value in choices(item)}
    return ctx.choices.get(word)


def _check_hook_names(ctx: Context, item: t.Hook) -> None:
    seen: set[str] = set()
    for ident in item.names:
        if ident.text not in names.HOOKS:
            help, fixes = suggestion(ctx, ident, names.HOOKS, f"hooks: {', '.join(names.HOOKS)}")
            ctx.report("S103", ident, f"unknown hook `{ident}`", help, fixes)
        elif ident.text in seen:
            ctx.report("S110", ident, f"`{ident}` is named twice in one binding", "remove one of the two")
        seen.add(ident.text)
