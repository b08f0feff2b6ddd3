"""Sets of rows and pages: named sets, positional builders, the algebra | & -, and `keep A then B upto N`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference import reductions, tensors
from sparsec.reference.moment import Moment
from sparsec.reference.program import Unsupported
from sparsec.reference.rows import every, newest, oldest, row_set
from sparsec.reference.values import Term, Value, elementwise, is_set, letters_of, ordered

Evaluate = Callable[[t.Expr, Moment], Term]
BUILDERS = frozenset({"sink", "recent", "oldest", "every", "before", "itself"})
RANKINGS = frozenset({"top", "bottom", "nucleus"})


# ---- positional sets -------------------------------------------------------------------------


def build(call: t.Call, at: Moment, evaluate: Evaluate) -> Value:
    """`recent(n)` and the like: over the resident rows of each head in position order, or over a zone's if one is given."""
    name = call.name.text
    if name in ("before", "itself"):
        return _pairs(name, call.args[0].name.text, at, call)
    count = evaluate(call.args[0], at)
    rows = at.builders.resident
    if len(call.args) > 1:
        rows = rows & at.builders.in_zone(zone_of(call.args[1], at), at.part)
    letters: tuple[str, ...] = ("h", "t")
    if name == "recent" and at.selecting:
        seen = torch.arange(at.builders.tokens) <= tensors.block(at, call).positions[:, None]
        rows, letters = rows & seen[:, None, :], ("i", "h", "t")
    limit = count.over(letters) if isinstance(count, Value) else torch.tensor(count)
    picked = {"sink": oldest, "oldest": oldest, "recent": newest, "every": every}[name](rows, limit)
    return row_set(picked, letters).renamed({"t": at.member})


def _pairs(name: str, letter: str, at: Moment, node: t.Node) -> Value:
    """Rows at or before another row (or query), or that row alone."""
    other = tensors.block(at, node).positions if letter == "i" else torch.arange(at.rows.tokens)
    mine = torch.arange(at.rows.tokens)
    related = mine <= other[:, None] if name == "before" else mine == other[:, None]
    mask = related[:, None, :] & at.builders.resident
    value = row_set(mask, ("@", "h", "t"))
    return value.renamed({"@": letter, "t": at.member})


def named(ref: t.Ref, at: Moment) -> Value:
    """all, none, open_page."""
    if ref.name.text == "open_page":
        return _open_page(at, ref)
    if at.expecting == ("p",):
        pages = torch.ones(tensors.page_count(at, ref), dtype=torch.bool)
        return Value(pages if ref.name.text == "all" else ~pages, ("p",), base=("p",))
    if at.expecting not in (("t",), ("s",)):
        raise Unsupported(f"`{ref.name.text}` over {at.expecting}", ref)
    rows = at.builders.resident
    return row_set(rows if ref.name.text == "all" else torch.zeros_like(rows)).renamed({"t": at.member})


def _open_page(at: Moment, node: t.Node) -> Value:
    """The rows of the page that holds each query's own row; outside selection hooks, of the newest row's page."""
    size = tensors.page_size(at, node)
    place = torch.div(at.rows.rank(), size, rounding_mode="floor")
    if not at.selecting:
        newest_page = place.masked_fill(~at.rows.resident, -1).amax(1, keepdim=True)
        return row_set((place == newest_page) & at.rows.resident).renamed({"t": at.member})
    own = place[:, tensors.block(at, node).positions]
    mask = (place[None] == own.T[:, :, None]) & at.rows.resident
    return row_set(mask, ("i", "h", "t")).renamed({"t": at.member})


def zone_of(ref: t.Expr, at: Moment) -> int:
    assert isinstance(ref, t.Ref), "a zone is a name"
    index = at.program.zone_index(ref.name.text)
    assert index is not None, f"no zone is called {ref.name.text}"
    return index


def zone(name: str, at: Moment) -> Value:
    """The rows of a zone, in the sense of the part that is being moved."""
    index = at.program.zone_index(name)
    assert index is not None, f"no zone is called {name}"
    return row_set(at.builders.in_zone(index, at.part)).renamed({"t": at.member})


# ---- algebra ---------------------------------------------------------------------------------


def combine(expr: t.Binary, left: Term, right: Term, at: Moment) -> Value:
    """| & - of sets; a set of pages beside a set of rows becomes its rows."""
    if not (is_set(left) and is_set(right)):
        raise Unsupported(f"`{expr.op}` between a set and a number", expr)
    if left.base != right.base:
        left, right = as_rows(left, at, expr), as_rows(right, at, expr)
    if left.base != right.base:
        raise Unsupported(f"`{expr.op}` between sets over {left.base} and {right.base}", expr)
    op = {"|": torch.logical_or, "&": torch.logical_and, "-": lambda a, b: a & ~b}[expr.op]
    return _as_set(elementwise(op, _mask(left), _mask(right)), left.base)


def choose(condition: Term, yes: Term, no: Term) -> Value:
    """`where` between sets."""
    assert isinstance(yes, Value) and isinstance(no, Value) and yes.base == no.base, "both branches are sets over the same letters"
    return _as_set(elementwise(torch.where, condition, _mask(yes), _mask(no)), yes.base)


def subset(left: Value, right: Value, at: Moment) -> bool:
    """`A in B`: every member of A is in B."""
    node = t.Node()
    left, right = as_rows(left, at, node), as_rows(right, at, node)
    letters = letters_of(left, right)
    return not bool((left.over(letters) & ~right.over(letters)).any())


def _mask(value: Value) -> Value:
    return Value(value.data, value.letters)


def _as_set(value: Term, base: tuple[str, ...]) -> Value:
    assert isinstance(value, Value), "a set has letters"
    return Value(value.data, value.letters, base=base)


def as_rows(value: Value, at: Moment, node: t.Node) -> Value:
    """A set of pages as the set of their rows."""
    if "p" not in value.base:
        return value
    inside = tensors.pages_of_tokens(at, node)
    letters = letters_of(value, inside)
    axis = letters.index("p")
    mask = (value.over(letters) & inside.over(letters)).any(axis)
    base = tuple("t" if letter == "p" else letter for letter in value.base)
    return Value(mask, letters[:axis] + letters[axis + 1 :], base=base)


# ---- keep ------------------------------------------------------------------------------------


def keep(ranking: t.Ranking, at: Moment, evaluate: Evaluate) -> Value:
    """The rows of `A then B upto N`: plain steps are taken whole, rankings fill the room that is left."""
    last = next((step for step in reversed(ranking.steps) if _ranks(step)), None)
    base = tuple(binder.letter.text for binder in last.binders) if last is not None else ("t",)
    if "l" in base:
        raise Unsupported("a ranking over layers", last or ranking)
    limit = evaluate(ranking.upto, at) if ranking.upto is not None else None
    rows: Value | None = None
    chosen: Value | None = None  # in the ranking's own letters
    for step in ranking.steps:
        if _ranks(step):
            mine = reductions.ranked(step, at, evaluate, chosen, _room(limit, chosen, base, at, evaluate))
            chosen = mine if chosen is None else _join(chosen, mine)
            rows = _joined_rows(rows, mine, at, step)
            continue
        whole = evaluate(step, at)
        assert isinstance(whole, Value) and whole.base, "a plain step of a ranking is a set"
        if chosen is not None and limit is not None and step is not ranking.steps[0]:
            raise Unsupported("a plain set after `then` beside `upto`", step)
        touched = _touched(whole, at, step) if "p" in base else as_rows(whole, at, step)
        chosen = touched if chosen is None else _join(chosen, touched)
        rows = _joined_rows(rows, whole, at, step)
    assert rows is not None, "a ranking has a step"
    return rows


def _ranks(step: t.Expr) -> bool:
    return isinstance(step, t.Reduce) and step.op.text in RANKINGS


def _join(a: Value, b: Value) -> Value:
    return _as_set(elementwise(torch.logical_or, _mask(a), _mask(b)), b.base)


def _joined_rows(rows: Value | None, more: Value, at: Moment, node: t.Node) -> Value:
    more = as_rows(more, at, node)
    return more if rows is None else _join(rows, more)


def _touched(rows: Value, at: Moment, node: t.Node) -> Value:
    """The pages that hold a row of the set."""
    if "p" in rows.base:
        return rows
    inside = tensors.pages_of_tokens(at, node)
    letters = letters_of(rows, inside)
    axis = letters.index("t")
    mask = (rows.over(letters) & inside.over(letters)).any(axis)
    return Value(mask, letters[:axis] + letters[axis + 1 :], base=("p",))


def _room(limit: Term | None, chosen: Value | None, base: tuple[str, ...], at: Moment, evaluate: Evaluate) -> Term | None:
    """How many members may still be taken: `upto` less what is taken, over the letters of the last ranking."""
    if limit is None or chosen is None:
        return limit
    letters = ordered({*chosen.letters, *base})
    taken = tensors.laid_out(_mask(chosen), letters, at, evaluate).data
    counted: Tensor = taken.sum([letters.index(letter) for letter in base])
    left = Value(counted, tuple(letter for letter in letters if letter not in base))
    return elementwise(lambda n, used: (n - used).clamp(min=0), limit, left)
