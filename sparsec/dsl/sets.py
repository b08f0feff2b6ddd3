"""S4xx: what sets hold, how finely they are told apart, and whether a ranking fits its bound.

Whether two sets can be combined at all is a question of types (S212). Proofs go over the ranges of params
(`static.py`) and the bounds of sets (`sizes.py`); moves into zones that store blocks are in `blocks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparsec.dsl import tree as t
from sparsec.dsl.blocks import check_block_moves
from sparsec.dsl.context import Context
from sparsec.dsl.names import RANKINGS
from sparsec.dsl.paths import all_places, conjuncts, text_of
from sparsec.dsl.sizes import PAGE, TOKEN, member_domain, size_forms
from sparsec.dsl.static import provably_leq

_SETS = frozenset({"set", "zone", "layer_set"})
_PLURALS = {"query": "queries", "kv_head": "KV heads", "group": "query heads", "kv_width": "positions of kv_width"}
_EACH = {"query": "query", "kv_head": "KV head", "group": "query head"}
_ROWS = frozenset({TOKEN, PAGE, None})


def check_sets(ctx: Context) -> None:
    """Report every S4xx finding of the method."""
    ranked = {id(step) for ranking in _rankings(ctx) if ranking.upto is not None for step in ranking.steps[1:]}
    for node in t.walk(ctx.method):
        if isinstance(node, t.Reduce) and node.op.text in ("top", "bottom") and id(node) not in ranked:
            _check_counted(ctx, node)
    for place in all_places(ctx.method):
        _check_statement(ctx, place.stmt, _numeric(ctx, place.conditions))
    check_block_moves(ctx)


def _rankings(ctx: Context) -> Iterator[t.Ranking]:
    return (node for node in t.walk(ctx.method) if isinstance(node, t.Ranking))


def plural(domain: str) -> str:
    return _PLURALS.get(domain, f"{domain}s")


# ---- statements --------------------------------------------------------------------------------


def _check_statement(ctx: Context, stmt: t.Stmt, given: tuple[t.Expr, ...]) -> None:
    match stmt:
        case t.Evict(keep=ranking):
            _check_ranking(ctx, ranking, given)
            for step in ranking.steps:
                _check_rows(ctx, step, "evict")
                _check_per_head(ctx, step, "evict")
        case t.Attend(read=ranking):
            _check_ranking(ctx, ranking, given)
            for step in ranking.steps:
                _check_rows(ctx, step, "attend")
                _check_per_query(ctx, step)
        case t.Move(rows=rows):
            _check_rows(ctx, rows, "move")
            _check_per_head(ctx, rows, "move")


def _numeric(ctx: Context, conditions: tuple[t.Expr, ...]) -> tuple[t.Expr, ...]:
    """Comparisons of numbers that hold where a statement runs: what a proof can use."""
    parts = (part for condition in conditions for part in conjuncts(condition) if isinstance(part, t.Binary))
    return tuple(part for part in parts if all(ctx.type_of(side).kind == "number" for side in (part.left, part.right)))


def _check_rows(ctx: Context, rows: t.Expr, verb: str) -> None:
    domain = member_domain(rows, ctx)
    if ctx.type_of(rows).kind in _SETS and domain not in _ROWS:
        message = f"`{verb}` takes tokens or pages, but `{text_of(rows, ctx)}` holds {plural(domain)}"
        ctx.report("S401", rows, message, "rank tokens or pages, e.g. `top[t](score[t, h], n)`")


def _check_per_head(ctx: Context, rows: t.Expr, verb: str) -> None:
    extra = _domains(ctx, rows) - {"kv_head", "layer"}
    if not extra:
        return
    letter, domain = _first_letter(ctx, rows, extra)
    message = f"this set differs per {_EACH.get(domain, domain)} (`{letter}`), but rows are stored once per KV head"
    helps = f"reduce it over `{letter}` before ranking, e.g. `max[{letter}](...)`; `{verb}` takes one set per KV head"
    ctx.report("S402", rows, message, helps)


def _check_per_query(ctx: Context, rows: t.Expr) -> None:
    extra = _domains(ctx, rows) - {"query", "kv_head", "group", "layer"}
    if extra:
        letter, domain = _first_letter(ctx, rows, extra)
        message = f"this set differs per {domain} (`{letter}`), but attention reads one set per query and query head"
        ctx.report("S403", rows, message, f"reduce it over `{letter}` before ranking, e.g. `sum[{letter}](...)`")


def _domains(ctx: Context, rows: t.Expr) -> set[str]:
    return {ctx.letters[letter] for letter in ctx.type_of(rows).free if letter in ctx.letters}


def _first_letter(ctx: Context, rows: t.Expr, domains: set[str]) -> tuple[str, str]:
    letter = min(letter for letter in ctx.type_of(rows).free if ctx.letters.get(letter) in domains)
    return letter, ctx.letters[letter]


# ---- rankings ----------------------------------------------------------------------------------


def _check_counted(ctx: Context, ranking: t.Reduce) -> None:
    if len(ranking.args) == 1:
        message = f"`{ranking.op.text}` has no count: it would hold every {'row' if _is_rows(ctx, ranking) else 'member'}"
        helps = f"write `{ranking.op.text}[...](score, n)`, or end a `then` ranking with `upto N`"
        ctx.report("S406", ranking, message, helps)


def _is_rows(ctx: Context, expr: t.Expr) -> bool:
    return member_domain(expr, ctx) in (TOKEN, None)


def _check_ranking(ctx: Context, ranking: t.Ranking, given: tuple[t.Expr, ...]) -> None:
    """`given`: conditions that hold where the statement runs."""
    for step in ranking.steps[1:]:
        if not (isinstance(step, t.Reduce) and step.op.text in RANKINGS):
            message = f"`then` ranks what is left, but `{text_of(step, ctx)}` is a set without an order"
            helps = "join it to the first set with `|`; after `then` comes `top`, `bottom` or `nucleus`"
            ctx.report("S407", step, message, helps)
    if ranking.upto is not None and not ctx.failed(ranking):
        _check_fit(ctx, ranking, given)


def _check_fit(ctx: Context, ranking: t.Ranking, given: tuple[t.Expr, ...]) -> None:
    last, upto = ranking.steps[-1], ranking.upto
    unit = member_domain(last, ctx) or TOKEN
    if not provably_leq(t.Int(1), upto, ctx, given):
        message = f"`{text_of(upto, ctx)}` is not provably at least 1"
        ctx.report("S405", upto, message, f"narrow the ranges, or write `upto max(1, {text_of(upto, ctx)})`")
    forms = size_forms(ranking.steps[0], ctx, unit)
    first = text_of(ranking.steps[0], ctx)
    if forms is None:
        message = f"`{first}` has no static size, so `upto {text_of(upto, ctx)}` may cut rows that are always kept"
        ctx.report("S404", ranking.steps[0], message, "keep a set of a known size, e.g. `recent(n)`, before `then`")
        return
    joint = _joint(ctx, last)
    if not all(_fits(ctx, form, upto, joint, given) for form in forms):
        noun, whole = plural(unit), " over all heads" if joint else ""
        message = f"`{first}` is always kept, but its {noun}{whole} do not provably fit `upto {text_of(upto, ctx)}`"
        ctx.report("S404", ranking.steps[0], message, _fit_help(ctx, forms, upto))


def _fit_help(ctx: Context, forms: tuple[t.Expr, ...], upto: t.Expr) -> str:
    """Names the param whose range is too wide, where the size is that param and the bound is another."""
    symbol = ctx.symbol_of(forms[0]) if len(forms) == 1 and isinstance(forms[0], t.Ref) else None
    if symbol is not None and isinstance(symbol.item, t.Param) and isinstance(upto, t.Ref):
        low = text_of(symbol.item.bound.low, ctx) if symbol.item.bound is not None else "0"
        return f"end its range there: `param {symbol.name}: {symbol.item.unit} in {low}..{upto.name} = ...`"
    return "narrow the ranges of the params, or raise the bound: `upto max(N, ...)`"


def _joint(ctx: Context, last: t.Expr) -> list[str]:
    """Model facts that N counts over: kv_heads for `top[t, h]`, n_layers too for `top[l, t, h]`."""
    base = {ctx.letters.get(letter) for letter in ctx.type_of(last).base}
    return [fact for domain, fact in (("kv_head", "kv_heads"), ("layer", "n_layers")) if domain in base]


def _fits(ctx: Context, size: t.Expr, upto: t.Expr, joint: list[str], given: tuple[t.Expr, ...]) -> bool:
    """size, counted once for every head (and layer), is at most `upto`. Common factors are left out of the proof."""
    rest, remaining = upto, []
    for fact in joint:
        divided = _divided(rest, fact)
        rest, remaining = (divided, remaining) if divided is not None else (rest, [*remaining, fact])
    for fact in remaining:
        size = t.Binary("*", size, t.Ref(t.Ident(fact)))
    return provably_leq(size, rest, ctx, given)


def _divided(expr: t.Expr, fact: str) -> t.Expr | None:
    """`a` of `a * fact`, the factor anywhere in a chain of products."""
    if not isinstance(expr, t.Binary) or expr.op != "*":
        return None
    for side, other in ((expr.left, expr.right), (expr.right, expr.left)):
        if isinstance(side, t.Ref) and side.name.text == fact and not side.indices:
            return other
        inner = _divided(side, fact)
        if inner is not None:
            return t.Binary("*", inner, other)
    return None
