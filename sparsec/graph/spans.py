"""Sets that positions alone decide, as spans of the rows held: how many rows their unions, cuts and differences have.

Index 0 is the oldest of `len` rows. Sizes are expressions over `len`, params and counters; nothing here knows scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from sparsec.dsl import tree as t

_MOST = 4  # spans of one union: inclusion and exclusion doubles with each
_ZERO, _ONE = t.Int(0), t.Int(1)
LEN = t.Ref(t.Ident("len"))


def number(value: int) -> t.Int:
    return t.Int(value)


def name(text: str, *indices: t.Expr) -> t.Ref:
    return t.Ref(t.Ident(text), indices)


KV_HEADS = name("kv_heads")


def call(function: str, *args: t.Expr) -> t.Expr:
    return t.Call(t.Ident(function), args)


def plus(left: t.Expr, right: t.Expr) -> t.Expr:
    if _ZERO in (left, right):
        return right if left == _ZERO else left
    return t.Binary("+", left, right)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [low, high), each `step`-th counted from row 0. `first`: it is the oldest n rows; `last`: the newest n."""

    low: t.Expr
    high: t.Expr
    step: t.Expr | None = None
    first: t.Expr | None = None
    last: t.Expr | None = None


Spans = tuple[Span, ...]
ALL = Span(_ZERO, LEN)


def oldest(count: t.Expr) -> Span:
    return Span(_ZERO, _capped(count), first=count)


def newest(count: t.Expr) -> Span:
    return Span(t.Binary("-", LEN, _capped(count)), LEN, last=count)


def every(step: t.Expr) -> Span:
    return Span(_ZERO, LEN, step)


def between(low: t.Expr, high: t.Expr) -> Span:
    return Span(low, high)


def _capped(count: t.Expr) -> t.Expr:
    """min(len, count), where that says more than count."""
    rest = isinstance(count, t.Call) and count.name.text == "max" and count.args[0] == _ZERO
    if count == LEN or rest and isinstance(count.args[1], t.Binary) and count.args[1].op == "-" and count.args[1].left == LEN:
        return count
    return call("min", LEN, count)


# ---- cuts ----------------------------------------------------------------------------------------


def common(left: Spans, right: Spans) -> Spans | None:
    """Rows in both; None where strides of different steps meet."""
    found = [_cut(one, other) for one in left for other in right]
    return None if None in found else tuple(found)


def without(left: Spans, right: Spans) -> Spans | None:
    """Rows of `left` that are not in `right`; None where that is no union of spans."""
    for cut in right:
        if cut.step is not None:
            return None
        rest = common(left, _outside(cut))
        if rest is None:
            return None
        left = rest
    return left


def _outside(cut: Span) -> Spans:
    if cut == ALL:
        return ()
    if cut.first is not None:
        return (newest(_rest(cut.first)),)
    if cut.last is not None:
        return (oldest(_rest(cut.last)),)
    return (oldest(cut.low), newest(_rest(cut.high)))


def _rest(count: t.Expr) -> t.Expr:
    return call("max", _ZERO, t.Binary("-", LEN, count))


def _cut(one: Span, other: Span) -> Span | None:
    if one.step is not None and other.step is not None and one.step != other.step:
        return None
    step = one.step or other.step
    if step is None and ALL in (one, other):
        return other if one == ALL else one
    if step is None and one.first is not None and other.first is not None:
        return oldest(_least(one.first, other.first))
    if step is None and one.last is not None and other.last is not None:
        return newest(_least(one.last, other.last))
    low = one.low if other.low in (_ZERO, one.low) else other.low if one.low == _ZERO else call("max", one.low, other.low)
    high = one.high if other.high in (LEN, one.high) else other.high if one.high == LEN else call("min", one.high, other.high)
    return Span(low, high, step)


def _least(one: t.Expr, other: t.Expr) -> t.Expr:
    return one if one == other else call("min", one, other)


# ---- sizes ---------------------------------------------------------------------------------------


def size(spans: Spans) -> t.Expr | None:
    """Rows of the union; None where it has too many parts, or strides of different steps."""
    spans = _merged(spans)
    if not spans:
        return _ZERO
    if len(spans) == 1:
        return _one(spans[0])
    ends = [span for span in spans if span.step is None and (span.first or span.last) is not None]
    if len(spans) == len(ends) == 2:  # one of each end, since those of one end are merged
        return call("min", LEN, plus(*(span.first or span.last for span in spans)))
    if len(spans) > _MOST:
        return None
    total: t.Expr = _ZERO
    for count in range(1, len(spans) + 1):
        for chosen in combinations(spans, count):
            shared = _all_common(chosen)
            if shared is None:
                return None
            total = plus(total, _one(shared)) if count % 2 else t.Binary("-", total, _one(shared))
    return total


def _merged(spans: Spans) -> Spans:
    """Without doubles, with one span for each end; all rows alone where they are among them."""
    if ALL in spans:
        return (ALL,)
    firsts = [span.first for span in spans if span.first is not None]
    lasts = [span.last for span in spans if span.last is not None]
    others = [span for span in spans if span.first is None and span.last is None]
    merged = [make(_most(counts)) for make, counts in ((oldest, firsts), (newest, lasts)) if counts]
    return tuple(dict.fromkeys([*merged, *others]))


def _most(counts: list[t.Expr]) -> t.Expr:
    different = tuple(dict.fromkeys(counts))
    return different[0] if len(different) == 1 else call("max", *different)


def _all_common(spans: Spans) -> Span | None:
    shared: Span | None = spans[0]
    for span in spans[1:]:
        shared = _cut(shared, span) if shared is not None else None
    return shared


def _one(span: Span) -> t.Expr:
    if span.step is not None:
        low, high = (_ZERO if end == _ZERO else _up(end, span.step) for end in (span.low, span.high))
        return high if low == _ZERO else call("max", _ZERO, t.Binary("-", high, low))
    if span.first is not None or span.last is not None:
        return _capped(span.first if span.first is not None else span.last)
    return span.high if span.low == _ZERO else call("max", _ZERO, t.Binary("-", span.high, span.low))


def _up(end: t.Expr, step: t.Expr) -> t.Expr:
    """How many multiples of the step lie below `end`."""
    return t.Binary("//", t.Binary("-", plus(end, step), _ONE), step)
