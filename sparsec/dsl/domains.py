"""Index domains: which letters an index, a binder or an equation may use. An index letter has one domain per file.

These functions judge letters and report; they infer nothing (types.py does). All take the letters already resolved.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsec.diagnostics import Fix
from sparsec.dsl import names
from sparsec.dsl import tree as t
from sparsec.dsl.checked import Type
from sparsec.dsl.context import Context
from sparsec.dsl.scopes import suggestion


_LETTERS = (
    "letters: i query, t s token, p page, h kv_head, g group, c d channel, l layer, x kv_width, y hidden_width; "
    "declare others with `domain`"
)


def bare(expr: t.Expr) -> str | None:
    """The name of an expression that is nothing but a name."""
    return expr.name.text if isinstance(expr, t.Ref) and not expr.indices else None


def letter_of(ctx: Context, expr: t.Expr) -> str | None:
    """The index letter that an expression is, or None."""
    name = bare(expr)
    return name if name in ctx.letters else None


def domain_item(ctx: Context, letter: str) -> t.Domain | None:
    """The declaration of a letter's domain; None for the letters of the language."""
    symbol = ctx.symbols.get(ctx.letters[letter])
    return symbol.item if symbol is not None and isinstance(symbol.item, t.Domain) else None


def member_letter(ctx: Context, letter: str) -> str | None:
    """The letter of the members of a group: `t` for a page or a cluster; None where a letter is no group."""
    if ctx.letters[letter] == "page":
        return "t"
    item = domain_item(ctx, letter)
    if item is None or item.kind != "groups":
        return None
    return next((known for known, domain in names.LETTERS.items() if domain == item.base.text), None)


def is_group(ctx: Context, letter: str) -> bool:
    item = domain_item(ctx, letter)
    return item is not None and item.kind == "groups"


def same_domain(ctx: Context, a: str, b: str) -> bool:
    """Do two letters range over the same things? A subset domain counts as its base where it indexes."""
    return ctx.letters[a] == ctx.letters[b] or base_domain(ctx, a) == base_domain(ctx, b)


def base_domain(ctx: Context, letter: str) -> str:
    item = domain_item(ctx, letter)
    return item.base.text if item is not None and item.kind == "subset" else ctx.letters[letter]


def unknown_letter(ctx: Context, ident: t.Ident) -> None:
    help, fixes = suggestion(ctx, ident, ctx.letters, _LETTERS)
    ctx.report("S109", ident, f"unknown index letter `{ident}`", help, fixes)


def target_known(ctx: Context, target: t.Ref, fixed: Sequence[str] = ()) -> tuple[str, ...] | None:
    """Letters of a left side, or None where one of them is wrong. `fixed`: values allowed as an index, as `layer`."""
    letters: list[str] = []
    good = True
    for index in target.indices:
        name = bare(index)
        if name in fixed:
            continue
        if name is None:
            ctx.report("S203", index, f"the left side of `{target.name}` takes index letters only",
                       "define it for every index, and choose with `where` on the right")  # fmt: skip
            good = False
        elif name not in ctx.letters:
            unknown_letter(ctx, index.name)
            good = False
        elif name in letters:
            ctx.report("S208", index, f"`{name}` occurs twice on the left side", "use two letters of the same domain")
            good = False
        else:
            letters.append(name)
    return tuple(letters) if good else None


def check_arity(ctx: Context, ref: t.Ref, letters: Sequence[str]) -> bool:
    """Does a reference give as many indices as the name was declared with?"""
    if len(ref.indices) == len(letters):
        return True
    shape = f"`{ref.name}[{', '.join(letters)}]`" if letters else f"`{ref.name}`"
    wanted, given = len(letters), len(ref.indices)
    noun = "index" if wanted == 1 else "indices"
    fixes = (Fix(ref.span, shape.strip("`")),) if not given else ()
    ctx.report("S205", ref, f"`{ref.name}` has {wanted or 'no'} {noun}, {given or 'none'} given", f"write {shape}", fixes)
    return False


def check_index_domain(ctx: Context, ref: t.Ref, index: t.Expr, letter: str, wanted: str) -> bool:
    """Does the letter range over the domain that this index of `ref` has (`wanted` is the declared letter)?"""
    if same_domain(ctx, letter, wanted):
        return True
    domain, index_domain = ctx.letters[letter], ctx.letters[wanted]
    fitting = [known for known, name in ctx.letters.items() if name == index_domain]
    message = f"`{letter}` ranges over {domain}, but this index of `{ref.name}` is {index_domain}"
    ctx.report("S206", index, message, f"letters of {index_domain}: {', '.join(fitting)}")
    return False


def check_equation(ctx: Context, target: t.Ref, letters: Sequence[str], value: Type, spare: int = 0) -> None:
    """Same letters on both sides; `spare` of them may be missing on the right: all for a constant that fills a state,
    one for the members of an index store."""
    if value.kind == "unknown":
        return
    free = value.free | frozenset(value.base) & frozenset(letters) if value.kind == "set" else value.free
    extra, missing = sorted(free - frozenset(letters)), sorted(frozenset(letters) - free)
    if len(extra) == len(missing) == 1 and not spare and same_domain(ctx, extra[0], missing[0]):
        message = f"`{target.name}` has `{missing[0]}` on the left, but `{extra[0]}` on the right"
        ctx.report("S201", target, message, f"both range over {ctx.letters[extra[0]]}: use one letter on both sides")
        return
    for letter in extra:
        domain = ctx.letters[letter]
        message = f"`{letter}` ({domain}) is free on the right but not bound on the left of `{target.name}`"
        help = f"reduce it, e.g. `sum[{letter}](...)`, or write `{target.name}` with `{letter}`"
        ctx.report("S201", target, message, help)
    if not ctx.strict or len(missing) <= spare:
        return
    for letter in missing:
        index = next(i for i in target.indices if bare(i) == letter)
        message = f"the value of `{target.name}` does not depend on `{letter}` ({ctx.letters[letter]})"
        ctx.report("S202", index, message, f"remove `{letter}` from the left side, or use it on the right")


def check_branches(ctx: Context, call: t.Call, branches: Sequence[Type]) -> None:
    """Branches of `where` may differ in heads and layers alone: one that lost its tokens is a slip."""
    if not ctx.strict or any(branch.kind == "unknown" for branch in branches):
        return
    union = frozenset().union(*(branch.free for branch in branches))
    for arg, branch in zip(call.args[1:], branches, strict=True):
        missing = union - branch.free
        if not branch.free or not missing:
            continue
        lost = sorted(letter for letter in missing if ctx.letters[letter] not in (*names.HEAD_DOMAINS, "layer"))
        if lost:
            others = ", ".join(sorted(union))
            message = f"this branch of `where` does not depend on `{lost[0]}`, but the other one does"
            help = f"both branches should be a value of [{others}]; only heads may be reduced in one"
            ctx.report("S210", arg, message, help)


def check_heads(ctx: Context, binder: t.Binder, free: frozenset[str]) -> None:
    """`g` counts the query heads of one KV head: without `h` it names nothing."""
    stray = sorted(letter for letter in free if ctx.letters[letter] == "group")
    if ctx.letters[binder.letter.text] == "kv_head" and stray:
        g = stray[0]
        message = f"`{binder.letter}` is reduced while `{g}` stays: `{g}` names a query head only together with `h`"
        ctx.report("S211", binder.letter, message, f"reduce both, e.g. `max[h, {g}](...)`, or `{g}` alone")


def check_binder(ctx: Context, binder: t.Binder, seen: Sequence[str], outer: frozenset[str], keeps: bool) -> bool:
    """Is the letter known, and not bound already?"""
    letter = binder.letter.text
    if letter not in ctx.letters:
        unknown_letter(ctx, binder.letter)
        return False
    if letter in seen:
        ctx.report("S207", binder.letter, f"`{letter}` is bound twice in the same brackets", "remove one of the two")
        return False
    if letter in outer and not keeps:
        other = [known for known in ctx.letters if known != letter and same_domain(ctx, known, letter)]
        help = f"use `{other[0]}` for one of the two" if other else "define the inner part with a `let`"
        ctx.report("S207", binder.letter, f"`{letter}` is already bound by a reduction around this one", help)
        return False
    return True
