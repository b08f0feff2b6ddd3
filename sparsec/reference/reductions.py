"""Reductions: `op[binders](args)`. Entries that a binder's set, residency or a value's support leave out never take part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference import pooling, ranking, sets, tensors
from sparsec.reference.moment import Moment
from sparsec.reference.program import Unsupported
from sparsec.reference.rows import row_set
from sparsec.reference.values import Term, Value, elementwise, letters_of, ordered, settled, tensor_of

Evaluate = Callable[[t.Expr, Moment], Term]


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """Arguments of a reduction laid out with the bound letters last: data [free..., bound...]; `mask` says what takes part."""

    args: tuple[Tensor, ...]
    mask: Tensor
    free: tuple[str, ...]
    bound: tuple[str, ...]
    windowed: bool  # an argument had a support or a binder a set: the result is defined only there


def reduce(expr: t.Reduce, at: Moment, evaluate: Evaluate) -> Term:
    """The value of any reduction."""
    op = expr.op.text
    if op in sets.RANKINGS:
        return ranked(expr, at, evaluate, None, None)
    if op in pooling.SLIDING:
        return _sliding(expr, at, evaluate)
    if op == "apportion":
        bound = bind(expr, expr.args[:1], at, evaluate)
        total = tensor_of(evaluate(expr.args[1], at), bound.free)
        return Value(ranking.apportion(bound.args[0], total), bound.free + bound.bound)
    if op not in _REDUCTIONS:
        raise Unsupported(f"the reduction `{op}`", expr)
    bound = bind(expr, expr.args, at, evaluate)
    axes = tuple(range(len(bound.free), len(bound.free) + len(bound.bound)))
    if op == "filter":
        return Value(bound.args[0].bool() & bound.mask, bound.free + bound.bound, base=bound.bound)
    data = _REDUCTIONS[op](bound.mask, axes, *bound.args)
    support = bound.mask.any(axes) if bound.windowed and "t" in bound.free else None
    return settled(Value(data, bound.free, support))


# ---- binders ---------------------------------------------------------------------------------


def bind(expr: t.Reduce, args: tuple[t.Expr, ...], at: Moment, evaluate: Evaluate) -> Bound:
    """Evaluate the arguments under the binders, and lay everything out with the bound letters last."""
    inner, masks, windowed = _binders(expr, at, evaluate)
    terms = [evaluate(arg, inner) for arg in args]
    terms = [_without_base(term) for term in terms]
    bound = ordered({binder.letter.text for binder in expr.binders})
    free = tuple(letter for letter in letters_of(*terms, *masks) if letter not in bound)
    letters = free + bound
    extent = tensors.sizes(letters, inner, evaluate)
    shape = [extent[letter] for letter in letters]
    mask = torch.ones(shape, dtype=torch.bool)
    for value in masks:
        mask = mask & value.over(letters)
    for term in terms:
        if isinstance(term, Value) and term.support is not None:
            mask, windowed = mask & term.support_over(letters), True
    return Bound(tuple(tensor_of(term, letters).expand(shape) for term in terms), mask, free, bound, windowed)


def _without_base(term: Term) -> Term:
    return replace(term, base=()) if isinstance(term, Value) else term


def _binders(expr: t.Reduce, at: Moment, evaluate: Evaluate) -> tuple[Moment, list[Value], bool]:
    """The moment inside the brackets, and one mask per binder that restricts its letter."""
    inner, masks, windowed = at, [], False
    for binder in expr.binders:
        letter = binder.letter.text
        if letter in ("t", "s"):
            masks.append(row_set(at.rows.resident).renamed({"t": letter}))
        elif letter == "p":
            inside = tensors.pages_of_tokens(at, binder)
            masks.append(Value(inside.data.any(inside.letters.index("t")), tuple(x for x in inside.letters if x != "t")))
        if binder.within is None:
            continue
        if letter == "i":
            inner = inner.observing(_window(binder.within, at, evaluate))
            continue
        masks.append(_within(binder, inner, evaluate))
        windowed = windowed or letter == "t"
    return inner, masks, windowed


def _window(within: t.Expr, at: Moment, evaluate: Evaluate) -> object:
    if not (isinstance(within, t.Call) and within.name.text == "last"):
        raise Unsupported("queries other than `last(n)`", within)
    count = int(evaluate(within.args[0], at))
    key = ("window", count)
    if key not in at.cache:
        at.cache[key] = at.storage.window(count)
    return at.cache[key]


def _within(binder: t.Binder, at: Moment, evaluate: Evaluate) -> Value:
    """The mask of `letter in SET`; a page letter stands for its rows."""
    letter, within = binder.letter.text, binder.within
    if isinstance(within, t.Ref) and not within.indices and within.name.text == "p" and "p" not in at.lets:
        return tensors.pages_of_tokens(at, binder, letter, "p")
    value = evaluate(within, at.counting(letter))
    if not isinstance(value, Value) or not value.base:
        raise Unsupported("a binder over something other than rows, pages or last(n)", binder)
    if letter in ("t", "s"):
        value = sets.as_rows(value, at, binder)
        (member,) = [x for x in value.base if x in ("t", "s")]
        value = value.renamed({member: letter})
    return value


# ---- rankings --------------------------------------------------------------------------------


def ranked(expr: t.Reduce, at: Moment, evaluate: Evaluate, taken: Value | None, room: Term | None) -> Value:
    """top, bottom or nucleus over the candidates not yet `taken`; no more than `room` members."""
    bound = bind(expr, expr.args[:1], at, evaluate)
    own = evaluate(expr.args[1], at) if len(expr.args) > 1 else None
    cover, count = (own, None) if expr.op.text == "nucleus" else (None, own)
    if count is None or room is not None:
        count = room if count is None else elementwise(torch.minimum, count, room)
    others = [term for term in (taken, count, cover) if isinstance(term, Value)]
    free = tuple(x for x in letters_of(Value(bound.mask, bound.free + bound.bound), *others) if x not in bound.bound)
    letters = free + bound.bound
    extent = tensors.sizes(letters, at, evaluate)
    shape = [extent[letter] for letter in letters]
    score = Value(bound.args[0], bound.free + bound.bound).over(letters).expand(shape)
    mask = Value(bound.mask, bound.free + bound.bound).over(letters).expand(shape)
    if taken is not None:
        mask = mask & ~taken.over(letters)
    flat_score, flat_mask = score.flatten(len(free)), mask.flatten(len(free))
    if cover is not None:
        picked = ranking.nucleus(flat_score, flat_mask, tensor_of(cover, free).expand(shape[: len(free)]))
        flat_mask = picked
    if count is not None:
        limit = tensor_of(count, free).expand(shape[: len(free)])
        flat_mask = ranking.best(flat_score, flat_mask, limit, expr.op.text != "bottom")
    elif cover is None:
        raise Unsupported("a ranking without a count", expr)
    return Value(flat_mask.reshape(shape), letters, base=bound.bound)


# ---- sliding and keeping reductions ------------------------------------------------------------


def _sliding(expr: t.Reduce, at: Moment, evaluate: Evaluate) -> Value:
    """softmax, cumsum, maxpool, avgpool: the bound letters stay."""
    bound = bind(expr, expr.args, at, evaluate)
    letters = bound.free + bound.bound
    x, mask = bound.args[0].flatten(len(bound.free)), bound.mask.flatten(len(bound.free))
    line = torch.ones_like(mask)
    if bound.bound in (("t",), ("s",)):
        resident = row_set(at.rows.resident).renamed({"t": bound.bound[0]})
        line = Value(resident.data, resident.letters).over(letters).expand(bound.mask.shape)
    width = next((int(evaluate(word.value, at)) for word in expr.keywords if word.name.text == "width"), 1)
    out = pooling.SLIDING[expr.op.text](x, mask, line, width).reshape(bound.mask.shape)
    defined = bound.windowed or any(binder.within is not None for binder in expr.binders)
    return Value(out, letters, bound.mask if defined else None)


# ---- plain reductions ------------------------------------------------------------------------


def _filled(x: Tensor, mask: Tensor, largest: bool) -> Tensor:
    """x with what takes no part replaced by the worst value."""
    if x.is_floating_point():
        return x.masked_fill(~mask, -torch.inf if largest else torch.inf)
    bounds = torch.iinfo(x.dtype)
    return x.masked_fill(~mask, bounds.min if largest else bounds.max)


def _real(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.double()


def _sum(mask: Tensor, axes: tuple[int, ...], x: Tensor) -> Tensor:
    return x.masked_fill(~mask, 0).sum(axes)


def _arg(mask: Tensor, axes: tuple[int, ...], x: Tensor, largest: bool) -> Tensor:
    assert len(axes) == 1, "argmax and argmin bind one letter"
    return (ranking.ranks(x, mask, largest) == 0).long().argmax(-1)


def _cosine(mask: Tensor, axes: tuple[int, ...], a: Tensor, b: Tensor) -> Tensor:
    return _sum(mask, axes, a * b) / (_sum(mask, axes, a * a) * _sum(mask, axes, b * b)).sqrt()


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": _sum,
    "mean": lambda mask, axes, x: _sum(mask, axes, _real(x)) / mask.sum(axes),
    "max": lambda mask, axes, x: _filled(x, mask, True).amax(axes),
    "min": lambda mask, axes, x: _filled(x, mask, False).amin(axes),
    "any": lambda mask, axes, x: (x.bool() & mask).any(axes),
    "every": lambda mask, axes, x: (x.bool() | ~mask).all(axes),
    "count": lambda mask, axes, x: (mask & x.bool()).sum(axes),
    "norm": lambda mask, axes, x: _sum(mask, axes, _real(x) ** 2).sqrt(),
    "cosine": _cosine,
    "apply": lambda mask, axes, a, b: _sum(mask, axes, a * b),
    "argmax": lambda mask, axes, x: _arg(mask, axes, x, True),
    "argmin": lambda mask, axes, x: _arg(mask, axes, x, False),
    "filter": _sum,
}
