"""Hook bodies and ensures: scopes of lets, and the type and letters of every statement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sparsec.dsl import domains, names, scopes, units
from sparsec.dsl import tree as t
from sparsec.dsl.checked import UNKNOWN, Symbol, Type
from sparsec.dsl.declarations import check_update
from sparsec.dsl.scopes import Scope
from sparsec.dsl.types import SET_KINDS, Typer

_ROWS = ("t",)


def collect_lets(typer: Typer) -> None:
    """Enter the lets of all hooks by name, for ensures and for help with names of other hooks."""
    for hook in typer.ctx.method.of(t.Hook):
        for let in _lets(hook.body):
            symbol = Symbol(let.target.name.text, "let", scopes.target_letters(let.target), let)
            typer.ctx.lets.setdefault(symbol.name, []).append(symbol)


def _lets(body: Iterable[t.Stmt]) -> Iterable[t.Let]:
    for stmt in body:
        if isinstance(stmt, t.Let):
            yield stmt
        elif isinstance(stmt, t.Branch):
            yield from _lets((*stmt.then, *stmt.otherwise))


def check_hook(typer: Typer, hook: t.Hook) -> None:
    scope = Scope("hook", {}, later_lets=frozenset(let.target.name.text for let in _lets(hook.body)))
    if hook.layers is not None:
        found = typer.infer_bool(hook.layers, scope)
        if found.kind != "unknown" and not found.static:
            typer.ctx.report("S119", hook.layers, "a `for` guard is decided before any request runs",
                             "use params, model facts and `layer`; put the rest in `when`")  # fmt: skip
    if hook.when is not None:
        _check_condition(typer, hook.when, scope)
    _check_block(typer, hook.body, scope)


def _check_block(typer: Typer, body: Iterable[t.Stmt], scope: Scope) -> None:
    """Statements in order; the lets of a block end with it."""
    scope = replace(scope, lets=dict(scope.lets))
    for stmt in body:
        match stmt:
            case t.Let():
                _check_let(typer, stmt, scope)
            case t.Assign():
                _check_assign(typer, stmt, scope)
            case t.Evict(keep=ranking) | t.Attend(read=ranking):
                _check_ranking(typer, ranking, scope)
            case t.Move():
                _check_move(typer, stmt, scope)
            case t.Blend():
                _check_blend(typer, stmt, scope)
            case t.Branch():
                _check_condition(typer, stmt.condition, scope)
                _check_block(typer, stmt.then, scope)
                _check_block(typer, stmt.otherwise, scope)


def _check_condition(typer: Typer, condition: t.Expr, scope: Scope) -> None:
    found = typer.infer_bool(condition, scope)
    if found.free:
        letters = ", ".join(sorted(found.free))
        message = f"this condition has a value for every `{letters}`, but a guard needs one"
        typer.ctx.report("S214", condition, message, f"reduce it with `any[{letters}](...)` or `every[{letters}](...)`")


# ---- definitions and updates ---------------------------------------------------------------------


def _check_let(typer: Typer, stmt: t.Let, scope: Scope) -> None:
    ctx, name = typer.ctx, stmt.target.name
    letters = domains.target_known(ctx, stmt.target)
    _type_indices(typer, stmt.target)
    found = typer.infer(stmt.value, replace(scope, defining=name.text))
    ctx.types[id(stmt.target)] = UNKNOWN
    if letters is not None:
        domains.check_equation(ctx, stmt.target, letters, found)
        ctx.types[id(stmt.target)] = _let_type(typer, stmt, letters, found)
    symbol = next(known for known in ctx.lets[name.text] if known.item is stmt)
    taken = scopes.reserved(name.text) or ("an index letter" if name.text in ctx.letters else None)
    if taken is not None:
        ctx.report("S111", name, f"`{name}` is {taken} of the language", "choose another name")
        ctx.types[id(stmt.target)] = UNKNOWN
        scope.lets[name.text] = symbol  # later uses mean this let
        return
    first = scope.lets.get(name.text) or ctx.symbols.get(name.text)
    if first is not None:
        message = f"`{name}` is already a {first.kind}, declared at line {first.item.span.line}"
        ctx.report("S110", name, message, "a `let` defines a new name: rename it")
        return
    ctx.bindings[id(stmt.target)] = symbol
    scope.lets[name.text] = symbol


def _let_type(typer: Typer, stmt: t.Let, letters: tuple[str, ...], found: Type) -> Type:
    """A set over (t, h) that is named with `h` becomes one set of t for every h."""
    free = frozenset(letters)
    if found.kind == "number":
        return typer.number(stmt.target, typer.unit_of(stmt.value), free, found.static)
    if found.kind in SET_KINDS:
        sliced = [letter for letter in found.base if letter in free]
        for letter in sliced:
            if typer.ctx.letters[letter] not in (*names.HEAD_DOMAINS, "layer"):
                message = f"`{letter}` is what the set ranges over, and no index of `{stmt.target.name}`"
                typer.ctx.report("S212", stmt.target, message, f"remove `{letter}` from the left side")
                return UNKNOWN
        return Type("set", free, tuple(letter for letter in found.base if letter not in free))
    if found.kind == "choice":
        return typer.mismatch(stmt.value, found, "a number or a set")
    return Type(found.kind, free, found.base, static=found.static) if found.kind != "unknown" else UNKNOWN


def _type_indices(typer: Typer, target: t.Ref) -> None:
    for index in target.indices:
        name = domains.bare(index)
        if name in typer.ctx.letters:
            typer.ctx.bindings[id(index)] = Symbol(name, "letter")
            typer.ctx.types[id(index)] = typer.number(index, units.WHOLE, frozenset({name}))


def _check_assign(typer: Typer, stmt: t.Assign, scope: Scope) -> None:
    ctx, target = typer.ctx, stmt.target
    symbol = scope.lets.get(target.name.text) or ctx.symbols.get(target.name.text)
    if symbol is None or not isinstance(symbol.item, t.State):
        typer.infer(stmt.value, scope)
        if symbol is None and scopes.reserved(target.name.text) is None:
            states = tuple(item.target.name.text for item in ctx.method.of(t.State))
            otherwise = f"declare it: `state {target.name}: f32 = 0`, or define it here with `let`"
            help, fixes = scopes.suggestion(ctx, target.name, states, otherwise)
            ctx.report("S101", target.name, f"unknown state `{target.name}`", help, fixes)
        return
    ctx.bindings[id(target)] = symbol
    letters = _assigned_letters(typer, target, symbol, scope)
    whole = ctx.type_of(symbol.item.target)
    known = letters is not None and whole.kind != "unknown"
    ctx.types[id(target)] = replace(whole, free=frozenset(letters)) if known else UNKNOWN
    if stmt.op == "+=" and whole.kind in ("set", "bool"):
        help = f"write `{target.name} = {target.name} | ...`" if whole.kind == "set" else "write `=`"
        ctx.report("S301", target, f"`{target.name}` is no number and cannot be added to", help)
    check_update(typer, target, stmt.value, scope, letters)


def _assigned_letters(typer: Typer, target: t.Ref, symbol: Symbol, scope: Scope) -> tuple[str, ...] | None:
    """Letters of an assignment's left side; an index `l` may be `layer`."""
    letters = domains.target_known(typer.ctx, target, fixed=("layer",))
    if not domains.check_arity(typer.ctx, target, symbol.letters) or letters is None:
        return None
    if any(wanted not in typer.ctx.letters for wanted in symbol.letters):
        return None  # reported at the declaration
    good = True
    for index, wanted in zip(target.indices, symbol.letters, strict=True):
        typer.infer(index, scope)
        letter = domains.letter_of(typer.ctx, index)
        if letter is not None:
            good = domains.check_index_domain(typer.ctx, target, index, letter, wanted) and good
        elif typer.ctx.letters[wanted] != "layer":
            message = f"`layer` is no index of `{target.name}` here: this one is {typer.ctx.letters[wanted]}"
            typer.ctx.report("S206", index, message, f"write `{wanted}`")
            good = False
    return letters if good else None


# ---- actions -------------------------------------------------------------------------------------


def _check_ranking(typer: Typer, ranking: t.Ranking, scope: Scope) -> None:
    found = [typer.infer_set(step, scope, _ROWS) for step in ranking.steps]
    if ranking.upto is None:
        return
    if any(step.kind == "unknown" for step in found):
        typer.infer_number(ranking.upto, scope)  # of pages or of tokens: nobody knows
        return
    pages = any(step.base and typer.ctx.letters[step.base[0]] == "page" for step in found)
    typer.infer_count(ranking.upto, scope, "pages" if pages else "tokens")


def _check_move(typer: Typer, stmt: t.Move, scope: Scope) -> None:
    if stmt.component is not None and stmt.component.text not in names.COMPONENTS:
        scopes.unknown(typer.ctx, "S101", "component", stmt.component, names.COMPONENTS)
    typer.infer_set(stmt.rows, scope, _ROWS)
    zones = tuple(zone.name.text for zone in typer.ctx.method.of(t.Zone))
    if stmt.zone.text not in zones:
        scopes.unknown_zone(typer.ctx, stmt.zone, stmt.zone, zones)


def _check_blend(typer: Typer, stmt: t.Blend, scope: Scope) -> None:
    letter = stmt.binder.letter.text
    if not domains.check_binder(typer.ctx, stmt.binder, (), scope.bound, keeps=False):
        return
    if stmt.binder.within is not None:
        found = typer.infer_set(stmt.binder.within, scope, (letter,))
        if len(found.base) == 1 and not domains.same_domain(typer.ctx, letter, found.base[0]):
            domain = typer.ctx.letters[letter]
            message = f"`{letter}` ranges over {domain}, but this is a set over {scopes.listed(found.base)}"
            typer.ctx.report("S209", stmt.binder, message, "use the letter of the set")
    inner = scope.binding((letter,))
    for part, value in (("key", stmt.key), ("value", stmt.value), ("times", stmt.times)):
        found = typer.infer_number(value, inner)
        if found.kind != "unknown" and letter not in found.free:
            message = f"the {part} of this `blend` does not depend on `{letter}`"
            typer.ctx.report("S204", value, message, f"index it with `{letter}`")
    key, value = typer.ctx.type_of(stmt.key), typer.ctx.type_of(stmt.value)
    if "unknown" not in (key.kind, value.kind) and key.free != value.free:
        one, other = (", ".join(sorted(side.free)) for side in (key, value))
        message = f"key and value differ in their letters: [{one}] and [{other}]"
        typer.ctx.report("S201", stmt.value, message, "a blended row has one key and one value: use the same letters")


# ---- ensures -------------------------------------------------------------------------------------


def check_ensure(typer: Typer, item: t.Ensure) -> None:
    """A letter that is free holds for every index; the same letter cannot also be bound inside."""
    found = typer.infer_bool(item.condition, Scope("ensure"))
    if found.kind == "unknown":
        return
    for node in t.walk(item.condition):
        if not isinstance(node, t.Reduce) or names.REDUCTIONS[node.op.text].keeps:
            continue
        for binder in node.binders:
            if binder.letter.text in found.free:
                letter = binder.letter.text
                message = f"`{letter}` is bound here, but free elsewhere in the same ensure"
                help = f"a free letter means `for every {letter}`: reduce it everywhere, or nowhere"
                typer.ctx.report("S215", binder.letter, message, help)
