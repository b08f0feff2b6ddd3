"""Types of reductions: `op[binders](args)`, rankings and the operations that keep their index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsec.dsl import domains, names, scopes, units
from sparsec.dsl import tree as t
from sparsec.dsl.calls import check_keywords
from sparsec.dsl.checked import UNKNOWN, Type
from sparsec.dsl.scopes import Scope
from sparsec.dsl.units import Unit

if TYPE_CHECKING:
    from sparsec.dsl.types import Typer

_CONDITIONS = frozenset({"any", "every", "filter"})  # reductions over true and false
_PAIRS = frozenset({"cosine", "apply"})  # both arguments run over the binder
_ORDERED = frozenset({"token", "page"})


def infer_reduce(typer: Typer, node: t.Reduce, scope: Scope) -> Type:
    rule = names.REDUCTIONS[node.op.text]  # the grammar admits no other word
    binders, within = _binders(typer, node, rule, scope)
    inner = scope if rule.keeps else scope.binding(binders or ())
    good = check_keywords(typer, node, rule.keywords, rule.required, scope)
    found = _arguments(typer, node, rule, inner, scope, binders)
    if binders is None or found is None or not good:
        return UNKNOWN
    if not _check_use(typer, node, found):
        return UNKNOWN
    free = _free(typer, node, rule, binders, within, found)
    if rule.result == "set":
        return Type("set", free, binders)
    if rule.result == "bool":
        return Type("bool", free, static=not _has_sets(typer, node) and found[0].static)
    if not rule.keeps:
        for binder in node.binders:
            domains.check_heads(typer.ctx, binder, free)
    static = not _has_sets(typer, node) and all(part.static for part in found)
    return typer.number(node, _unit(typer, node, rule), free, static)


# ---- binders -----------------------------------------------------------------------------------


def _binders(
    typer: Typer, node: t.Reduce, rule: names.Reduction, scope: Scope
) -> tuple[tuple[str, ...] | None, frozenset[str]]:
    """The letters bound (None after a report), and the free letters of the sets that they run over."""
    bound: list[str] = []
    within: frozenset[str] = frozenset()
    good = True
    for binder in node.binders:
        known = domains.check_binder(typer.ctx, binder, bound, scope.bound, rule.keeps)
        if known:
            bound.append(binder.letter.text)
            known = _check_ordered(typer, binder, rule)
        if binder.within is not None:
            free = _within(typer, binder, scope.binding(bound[:-1]), known)
            known = known and free is not None
            within |= (free or frozenset()) - frozenset(bound[:-1])
        good = good and known
    return (tuple(bound) if good else None), within


def _check_ordered(typer: Typer, binder: t.Binder, rule: names.Reduction) -> bool:
    domain = typer.ctx.letters[binder.letter.text]
    if not rule.ordered or domain in _ORDERED:
        return True
    message = f"`{rule.name}` runs along neighbours, and {domain} has none"
    typer.ctx.report("S206", binder.letter, message, "letters with neighbours: t, s (token), p (page)")
    return False


def _within(typer: Typer, binder: t.Binder, scope: Scope, known: bool) -> frozenset[str] | None:
    """Free letters of the set after `in`; None where it is no set that the letter can run over."""
    found = typer.infer_set(binder.within, scope)
    if found.kind == "unknown" or not known:
        return None
    letter = binder.letter.text
    if not found.base:
        typer.settle(binder.within, (letter,))
    elif not _runs_over(typer, letter, found):
        domain = typer.ctx.letters[letter]
        message = f"`{letter}` ranges over {domain}, but this is a set over {scopes.listed(found.base)}"
        typer.ctx.report("S209", binder, message, _runs_help(typer, found))
        return None
    if letter in found.free:
        message = f"the set that `{letter}` runs over depends on `{letter}` itself"
        typer.ctx.report("S207", binder, message, "use another letter of the same domain inside the set")
        return None
    return found.free


def _runs_over(typer: Typer, letter: str, found: Type) -> bool:
    if len(found.base) != 1:
        return False
    if domains.same_domain(typer.ctx, letter, found.base[0]):
        return True
    domain = domains.base_domain(typer.ctx, letter)
    rows = typer.as_tokens(found.base) == "token"
    return domain == "token" and rows or domain == "page" and found.kind == "zone"  # the pages of a zone


def _runs_help(typer: Typer, found: Type) -> str:
    if len(found.base) > 1:
        keep = next((letter for letter in found.base if typer.ctx.letters[letter] != "token"), found.base[0])
        return f"define the set with `let name[{keep}] = ...` and write `in name[{keep}]`"
    domain = typer.ctx.letters[found.base[0]]
    fitting = [letter for letter, name in typer.ctx.letters.items() if name == domain]
    return f"letters of {domain}: {', '.join(fitting)}"


# ---- arguments ---------------------------------------------------------------------------------


def _arguments(
    typer: Typer, node: t.Reduce, rule: names.Reduction, inner: Scope, outer: Scope, binders: tuple[str, ...] | None
) -> list[Type] | None:
    least, most = rule.args
    if not least <= len(node.args) <= most:
        words = f"{least}" if least == most else f"{least} or {most}"
        message = f"`{rule.name}` takes {words} argument{'' if most == 1 else 's'}, {len(node.args)} given"
        typer.ctx.report("S118", node, message, f"{rule.name}: {rule.doc}")
        for arg in node.args:
            typer.infer(arg, inner)
        return None
    if rule.name in _CONDITIONS:
        found = [typer.infer_bool(arg, inner) for arg in node.args]
    elif rule.name == "count":
        found = [typer.infer(arg, inner) for arg in node.args]
        found = [part if part.kind == "bool" else typer.want(node.args[0], part, "number") for part in found]
    elif rule.name in _PAIRS:
        found = [typer.infer_number(arg, inner) for arg in node.args]
    else:
        found = [typer.infer_number(node.args[0], inner), *_second(typer, node, rule, outer, binders)]
    return None if any(part.kind == "unknown" for part in found) else found


def _second(
    typer: Typer, node: t.Reduce, rule: names.Reduction, scope: Scope, binders: tuple[str, ...] | None
) -> list[Type]:
    """The count of a ranking, the share of a nucleus, the total of an apportion."""
    if len(node.args) < 2:
        return []
    count = node.args[1]
    if rule.name == "nucleus":
        found = typer.infer_number(count, scope)
        if found.kind != "unknown" and typer.unit_of(count).dim not in ("ratio", "int", None):
            dim = typer.unit_of(count).dim
            typer.ctx.report("S304", count, f"`nucleus` takes a share of the mass, but this is in {dim}",
                             "give a ratio in 0..1, or use `top` for a count")  # fmt: skip
    else:
        found = typer.infer_count(count, scope, _counted(typer, rule, binders))
    own = sorted(found.free & frozenset(binders or ()))
    if own:
        message = f"the number of members depends on `{own[0]}`, which `{rule.name}` ranks"
        typer.ctx.report("S214", count, message, f"reduce `{own[0]}` first")
        return [UNKNOWN]
    return [found]


def _counted(typer: Typer, rule: names.Reduction, binders: tuple[str, ...] | None) -> str:
    """What a ranking counts: pages for `top[p]`, tokens for `top[t]`, else plain things."""
    found = {typer.ctx.letters[letter] for letter in binders or ()}
    if rule.name == "apportion" or not found:
        return "int"
    if "token" in found:
        return "tokens"
    return "pages" if "page" in found else "int"


def _check_use(typer: Typer, node: t.Reduce, found: list[Type]) -> bool:
    """Every binder must be free in the body; `count[t in S](1)` counts the members of S."""
    good = True
    bodies = found if node.op.text in _PAIRS else found[:1]
    for binder in node.binders:
        if node.op.text == "count" and binder.within is not None:
            continue
        if any(binder.letter.text not in body.free for body in bodies):
            letter = binder.letter.text
            message = f"`{node.op}` ranges over `{letter}` but its body never uses it"
            others = sorted(found[0].free)
            help = f"free in the body: {', '.join(others)}" if others else "the body has no index at all"
            typer.ctx.report("S204", binder.letter, message, help)
            good = False
    return good


# ---- results -----------------------------------------------------------------------------------


def _free(
    typer: Typer,
    node: t.Reduce,
    rule: names.Reduction,
    binders: tuple[str, ...],
    within: frozenset[str],
    found: list[Type],
) -> frozenset[str]:
    free = frozenset().union(within, *(part.free for part in found))
    if rule.name == "svd":
        onto = {domains.bare(keyword.value) for keyword in node.keywords if keyword.name.text == "onto"}
        return free - frozenset(binders) | frozenset(letter for letter in onto if letter)
    if rule.name == "kmeans":  # a cluster for every vector: the binder stays, the channels go
        return frozenset(letter for letter in free if typer.ctx.letters[letter] != "channel")
    return free if rule.keeps else free - frozenset(binders)


def _has_sets(typer: Typer, node: t.Reduce) -> bool:
    """Does a binder run over a set that only the sequence knows?"""
    sets = [binder.within for binder in node.binders if binder.within is not None]
    return any(typer.ctx.type_of(found).kind != "layer_set" for found in sets)


def _unit(typer: Typer, node: t.Reduce, rule: names.Reduction) -> Unit:
    body = typer.unit_of(node.args[0])
    match rule.name:
        case "sum" | "max" | "min" | "cumsum" | "maxpool":
            return body
        case "mean" | "avgpool":
            return Unit(body.dim, False)
        case "count":
            dim = _counted(typer, rule, tuple(binder.letter.text for binder in node.binders))
            return Unit(dim, True)
        case "apportion":
            return units.join(units.WHOLE, typer.unit_of(node.args[1]))
        case "argmax" | "argmin" | "kmeans":
            return units.WHOLE
    return units.PLAIN
