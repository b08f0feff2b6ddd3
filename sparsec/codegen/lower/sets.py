"""Sets as masks: builders by position, zones, combinations, rankings, and `keep A then B upto N`."""

from __future__ import annotations

from sparsec.codegen.lower import build, expressions
from sparsec.codegen.lower.scope import Scope
from sparsec.codegen.plan import Op, canonical
from sparsec.codegen.unsupported import unsupported
from sparsec.dsl import tree as t
from sparsec.dsl.names import RANKINGS

_RELATIVE = ("recent", "open_page")  # in a selection hook they count from each query; the others from the ends of the sequence
_BUILDERS = ("sink", "recent", "oldest", "every", "before", "itself")


def is_positional(expr: t.Call) -> bool:
    return expr.name.text in _BUILDERS


def is_ranked(expr: t.Reduce) -> bool:
    return expr.op.text in RANKINGS or expr.op.text == "filter"


def everything(letter: str, scope: Scope) -> Op:
    """All valid rows or pages; other domains have no gaps."""
    if letter not in ("t", "s", "p"):
        return build.const(True)
    return _members("all_pages" if letter == "p" else "all", letter, scope)


def members(within: t.Expr, letter: str, scope: Scope) -> Op:
    """The set that a binder ranges over, its members under the binder's letter."""
    op = expressions.lower(within, scope)
    if letter in ("t", "s"):
        op = rows_of(op, scope)
    return _under(op, letter) if letter == "s" else op


def _under(op: Op, letter: str) -> Op:
    """A set of tokens with another letter for its members, in every part of it."""
    if "t" not in op.axes or letter in op.axes:
        return op
    axes = tuple(letter if a == "t" else a for a in op.axes)
    detail = tuple(letter if d == "t" else d for d in op.detail)
    args = tuple(_under(arg, letter) for arg in op.args)
    return Op(op.name, args, detail, axes, op.kind, op.host, op.thin, None if op.support is None else _under(op.support, letter))


def zone(name: str, scope: Scope, part: str | None = None) -> Op:
    return _members("all", "t", scope, zone=name, part=part)


def _members(
    name: str, letter: str, scope: Scope, *args: Op, zone: str | None = None, part: str | None = None, thin: bool = True
) -> Op:
    """A set by position. `seen`: relative to each query of a chunk."""
    detail: tuple[str | None, ...] = (name, zone, part)
    axes: tuple[str, ...] = ("h", letter)
    if name in _RELATIVE and scope.in_selection and scope.in_blocks:
        detail, axes = (*detail, "seen"), ("i", "h", letter)
    return Op("positional", args, detail, axes, "set", thin=thin and not scope.names.heads_differ)


def named(expr: t.Ref, scope: Scope) -> Op:
    name = expr.name.text
    if name == "all":
        return everything("t", scope)
    if name == "open_page":
        return _members("open_page", "p", scope)
    if name == "none":
        return build.apply("empty", everything("t", scope), kind="set")
    unsupported(f"`{name}` in a hook", expr.span, "it is for `ensure`", "S907")


def positional(expr: t.Call, scope: Scope) -> Op:
    name = expr.name.text
    if name in ("before", "itself"):
        unsupported(f"`{name}(...)`", expr.span, "use sink, recent, oldest or every", "S907")
    zone_name = expr.args[1].name.text if len(expr.args) > 1 else None
    count = expressions.lower(expr.args[0], scope)
    return _members(name, "t", scope, count, zone=zone_name, thin="h" not in count.axes)


def aligned(left: Op, right: Op, scope: Scope) -> tuple[Op, Op]:
    """Two sets over one kind of member; a thin h goes where the other has none.

    Beside pages, `all` and `none` are of pages; where only one side has pages, they become their rows.
    """
    if ("p" in left.axes) != ("p" in right.axes):
        left, right = (_all_as_pages(op, scope) for op in (left, right))
    if ("p" in left.axes) != ("p" in right.axes):
        left, right = rows_of(left, scope), rows_of(right, scope)
    for a, b, swap in ((left, right, False), (right, left, True)):
        if a.thin and "h" in a.axes and "h" not in b.axes:
            a = build.widen(a, tuple(x for x in a.axes if x != "h"))
            return (b, a) if swap else (a, b)
    return left, right


def _all_as_pages(op: Op, scope: Scope) -> Op:
    """A set that is made of `all` and `none` alone, over pages."""
    if op == everything("t", scope):
        return everything("p", scope)
    if op.name != "map" or "t" not in op.axes:
        return op
    args = [_all_as_pages(arg, scope) for arg in op.args]
    return op if any("t" in arg.axes for arg in args) else build.apply(str(op.detail[0]), *args, kind=op.kind)


def rows_of(op: Op, scope: Scope) -> Op:
    """The rows of a set: of pages, those that exist (the newest page may not be full)."""
    return op if "p" not in op.axes else build.apply("and", to_tokens(op), everything("t", scope), kind="set")


def to_tokens(op: Op) -> Op:
    if "p" not in op.axes:
        return op
    axes = canonical((set(op.axes) - {"p"}) | {"t"})
    return Op("pages_to_tokens", (op,), axes=axes, kind="set", thin=op.thin)


def to_pages(op: Op) -> Op:
    if "t" not in op.axes:
        return op
    axes = canonical((set(op.axes) - {"t"}) | {"p"})
    return Op("pages_of", (op,), axes=axes, kind="set", thin=op.thin)


def combine(fn: str, left: Op, right: Op, scope: Scope) -> Op:
    left, right = aligned(left, right, scope)
    return build.apply(fn, left, right, kind="set")


def ranked(expr: t.Reduce, scope: Scope) -> Op:
    """`top[letters](score, n)` as a set of its own."""
    if expr.op.text == "filter":
        return _filter(expr, scope)
    score, candidates, count = _ranking(expr, scope)
    if count is None:
        unsupported("a ranking without a count", expr.span, "give a count, or use it in `keep ... upto`", "S908")
    return _top(expr, score, candidates, count)


def _top(expr: t.Reduce, score: Op, candidates: Op, count: Op) -> Op:
    letters = _letters(expr)
    score, candidates = _score_and_candidates(score, candidates)
    axes, thin = build.joined(score, candidates)
    count = build.widen(count, tuple(a for a in axes if a not in letters)) if not count.host else count
    return Op("rank", (score, candidates, count), (expr.op.text, *letters), axes, "set", thin=thin)


def _letters(expr: t.Reduce) -> tuple[str, ...]:
    return canonical({binder.letter.text for binder in expr.binders})


def _ranking(expr: t.Reduce, scope: Scope) -> tuple[Op, Op, Op | None]:
    """Score, candidates and count of one ranking."""
    letters = _letters(expr)
    if "l" in letters:
        unsupported("a ranking across layers", expr.span, "rank within a layer", "S908")
    score = expressions.lower(expr.args[0], scope)
    candidates = score.support or everything("p" if "p" in letters else "t", scope)
    for binder in expr.binders:
        if binder.within is not None:
            candidates = members(binder.within, binder.letter.text, scope)
    count = expressions.lower(expr.args[1], scope) if len(expr.args) > 1 else None
    return score, candidates, count


def _score_and_candidates(score: Op, candidates: Op) -> tuple[Op, Op]:
    if "h" not in score.axes and candidates.thin and "h" in candidates.axes:
        candidates = build.widen(candidates, tuple(a for a in candidates.axes if a != "h"))
    return score, candidates


def _filter(expr: t.Reduce, scope: Scope) -> Op:
    condition = expressions.lower(expr.args[0], scope)
    among = everything(_letters(expr)[0], scope)
    for binder in expr.binders:
        if binder.within is not None:
            among = members(binder.within, binder.letter.text, scope)
    left, right = aligned(build.apply("same", condition, kind="set"), among, scope)
    return build.apply("and", left, right, kind="set")


def keep(ranking: t.Ranking, scope: Scope) -> Op:
    """`A then B upto N` as one mask over tokens."""
    first, *others = ranking.steps
    if isinstance(first, t.Reduce) and is_ranked(first) and (others or ranking.upto is not None):
        others, first = [first, *others], None
    if not others and ranking.upto is None:
        return to_tokens(expressions.lower(first, scope))
    ranks = [step for step in others if isinstance(step, t.Reduce) and step.op.text in RANKINGS]
    if len(ranks) != len(others):
        step = next(s for s in others if s not in ranks)
        unsupported("a plain set after `then`", step.span, "join it to the first set with `|`", "S908")
    return _keep(first, ranks, ranking, scope)


def _keep(first: t.Expr | None, ranks: list[t.Reduce], ranking: t.Ranking, scope: Scope) -> Op:
    member = "p" if any("p" in _letters(rank) for rank in ranks) else "t"
    letters = {_letters(rank) for rank in ranks}
    if len(letters) > 1:
        unsupported("rankings over different letters in one `keep`", ranking.span, "use the same letters in each", "S908")
    competing = letters.pop()
    parts = [_ranking(rank, scope) for rank in ranks]
    if first is None and len(parts) == 1 and parts[0][2] is None:
        return to_tokens(_top(ranks[0], *parts[0][:2], expressions.lower(ranking.upto, scope)))
    always = protected = expressions.lower(first, scope) if first is not None else None
    if protected is not None:
        protected = to_pages(protected) if member == "p" else rows_of(protected, scope)
    masks = [op for score, candidates, _ in parts for op in (score, candidates)] + ([protected] if protected is not None else [])
    axes, thin = build.joined(*masks)
    axes = canonical(set(axes) | {"h"})
    thin = thin or all("h" not in op.free for op in masks)
    outer = tuple(a for a in axes if a not in competing)
    args: list[Op] = [build.widen(protected, axes)] if protected is not None else []
    detail: list[str | int | None] = ["protected" if protected is not None else None, ",".join(competing)]
    for rank, (score, candidates, count) in zip(ranks, parts):
        args += [build.widen(score, axes), build.widen(candidates, axes)] + ([_counts(count, outer)] if count is not None else [])
        detail += [rank.op.text, "counted" if count is not None else None]
    if ranking.upto is not None:
        args.append(_counts(expressions.lower(ranking.upto, scope), outer))
        detail.append("upto")
    kept = to_tokens(Op("keep", tuple(args), tuple(detail), axes, "set", thin=thin))
    if member == "t" or always is None or "t" not in always.axes:
        return kept
    # A page that `A` touches costs one, but only the rows of A in it are kept.
    return combine("or", combine("minus", kept, to_tokens(args[0]), scope), always, scope)


def _counts(count: Op, outer: tuple[str, ...]) -> Op:
    return count if count.host else build.widen(count, outer)
