"""Sampling inside a graph, continued (sample.py): which ids may be the last one that top-k or top-p keeps, by two passes over the vocabulary.

A pass cuts the keys that may be the last kept one at pivots, and sums what reaches each: how many ids, or their weights. Sums are whole numbers, so
atomics do not depend on their order. The cut in which the sum reaches what is asked for is cut again; what then is left is listed.
Pivots lie evenly between logits, first by the distance from the largest logit to the middle one of the groups' largest, so that a few thousand ids are
left of any vocabulary that spreads as logits do; where they leave more than the list holds, threshold.py reads the vocabulary, and is only slower.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next
from .sample import (  # fmt: skip
    _MODE, _TOP_K, _LEAST, _BY_K, _BY_P, _SCALE, _DRAWS, _NARROWS, _BOUND, _COUNT, LEAST_KEY, NO_KEY,
    penalised, halvings, weight_of, share_of, key_of, reached_in,
)

PASSES = 2
WAYS = 16
_WAYS, _PASSES = tl.constexpr(WAYS), tl.constexpr(PASSES)


@triton.jit
def value_of(key):
    """key_of the other way round; no number for LEAST_KEY."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def pivot(n, low, high, middle, FIRST: tl.constexpr):
    """Key number n, an int32 tensor, of the WAYS pivots that cut the keys from `low` up to but not `high`: descending, the last is `low`.

    They lie in even steps of the logit. FIRST: high - 1 is the largest logit's key, `middle` that of the groups' middle one, and a step a quarter of the
    distance, so that of normally distributed logits all but a few lie between the pivots. Steps of the key where logits are infinite or do not differ.
    """
    top = value_of(high - 1)
    step = (top - value_of(middle)) * 0.25 if FIRST else (top - value_of(low)) * 0.0625
    even = high - (((high - low) * (n + 1).to(tl.int64)) >> 4)
    usable = (step > 0) & (step < float("inf"))
    by_value = key_of(top - tl.where(usable, step, 0.0) * (n + 1).to(tl.float32)).to(tl.int64)
    cut = tl.minimum(tl.maximum(tl.where(usable, by_value, even), low), high - 1)
    return tl.where(n == _WAYS - 1, low, cut)


@triton.jit
def narrowed(asked_ptr, shares_ptr, found_ptr, top_ptr, sums_ptr, row, rows, PASSES: tl.constexpr):
    """(low, high, base, need) after some passes: the last kept key is at least `low` and below `high`, and keys from `high` up are worth `base` of `need`."""
    mode = tl.load(asked_ptr + _MODE * rows + row)
    middle = tl.load(found_ptr + _BOUND * rows + row)
    by_k = (mode & _BY_K) > 0
    need = tl.load(asked_ptr + _TOP_K * rows + row)
    low, high = tl.zeros([], tl.int64) + LEAST_KEY + 1, key_of(tl.load(top_ptr + row)).to(tl.int64) + 1
    base = tl.zeros([], tl.int64)
    n = tl.arange(0, _WAYS)
    for done in tl.static_range(PASSES):
        sums = tl.load(sums_ptr + (row * _PASSES + done) * _WAYS + n)
        if done == 0:
            need = tl.where(by_k, need, share_of(tl.max(sums, 0), tl.load(shares_ptr + row)))
        cut = pivot(n, low, high, middle, done == 0)
        summed = by_k | (n % 2 == 1)
        low = tl.maximum(low, tl.max(tl.where(summed & (sums >= need), cut, LEAST_KEY), 0))
        high = tl.minimum(high, tl.min(tl.where(summed & (sums < need), cut, NO_KEY), 0))
        base = tl.maximum(base, tl.max(tl.where(summed & (sums < need), sums, 0), 0))
    return low, high, base, need


@triton.jit
def interval(asked_ptr, shares_ptr, found_ptr, top_ptr, sums_ptr, row, rows):
    """(low, high, need): candidates have keys from `low` up to but not `high`, and the last one that the first of top-k and top-p keeps is where
    candidates from the largest down are worth `need`. Those of a row with both go up to the largest, since top-p may keep fewer."""
    mode = tl.load(asked_ptr + _MODE * rows + row)
    low, need = tl.load(found_ptr + _BOUND * rows + row), tl.load(asked_ptr + _TOP_K * rows + row)
    high = key_of(tl.load(top_ptr + row)).to(tl.int64) + 1
    if tl.load(found_ptr + _NARROWS * rows + row) > 0:
        low, below, base, need = narrowed(asked_ptr, shares_ptr, found_ptr, top_ptr, sums_ptr, row, rows, _PASSES)
        if (mode & (_BY_K | _BY_P)) != (_BY_K | _BY_P):
            high, need = below, need - base
    return low, high, need


@triton.jit
def narrow(
    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, sums_ptr, rows, vocab,
    PASS: tl.constexpr, PART: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """sums [row, pass, pivot] int64: ids that reach each of a pass's pivots, or the weights that reach every second one, since these cost more to sum."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if (tl.load(found_ptr + _DRAWS * rows + row) > 0) & (tl.load(found_ptr + _NARROWS * rows + row) > 0):
        low, high, _, _ = narrowed(asked_ptr, shares_ptr, found_ptr, top_ptr, sums_ptr, row, rows, PASS)
        middle = tl.load(found_ptr + _BOUND * rows + row)
        ids = part * PART + tl.arange(0, PART)
        x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
        key = tl.where(ids < vocab, key_of(x), LEAST_KEY)
        n_of = tl.arange(0, _WAYS)
        cuts = pivot(n_of, low, high, middle, PASS == 0).to(tl.int32)
        sums_ptr += (row * _PASSES + PASS) * _WAYS
        if (tl.load(asked_ptr + _MODE * rows + row) & _BY_K) > 0:
            for n in tl.static_range(_WAYS):
                cut = tl.sum(tl.where(n_of == n, cuts, 0), 0)
                count = tl.sum((key >= cut).to(tl.int32), 0)
                tl.atomic_add(sums_ptr + n, count.to(tl.int64), sem="relaxed")
        else:
            below = halvings(x, tl.load(top_ptr + row), tl.load(scales_ptr + _SCALE * rows + row))
            weight = weight_of(below, tl.load(asked_ptr + _LEAST * rows + row))
            for n in tl.static_range(1, _WAYS, 2):
                cut = tl.sum(tl.where(n_of == n, cuts, 0), 0)
                reached = tl.sum(tl.where(key >= cut, weight, 0), 0)
                tl.atomic_add(sums_ptr + n, reached, sem="relaxed")


@triton.jit
def list_candidates(
    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, best_ptr, sums_ptr, list_ptr, rows, vocab, groups,
    PART: tl.constexpr, GROUP: tl.constexpr, LIST: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """list [row, LIST]: the first of the candidates, in any order; COUNT: how many there are."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    draws = tl.load(found_ptr + _DRAWS * rows + row) > 0
    if draws & ((tl.load(asked_ptr + _MODE * rows + row) & (_BY_K | _BY_P)) > 0):
        low, high, _ = interval(asked_ptr, shares_ptr, found_ptr, top_ptr, sums_ptr, row, rows)
        if reached_in(best_ptr, row, part, groups, low, PART, GROUP):
            ids = part * PART + tl.arange(0, PART)
            x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
            key = key_of(x)
            listed = ((key >= low) & (key < high) & (ids < vocab)).to(tl.int32)
            count = tl.sum(listed, 0)
            if count > 0:
                first = tl.atomic_add(found_ptr + _COUNT * rows + row, count.to(tl.int64), sem="relaxed")
                place = first + tl.cumsum(listed, 0) - 1
                tl.store(list_ptr + row * LIST + place, ids, (listed > 0) & (place < LIST))
