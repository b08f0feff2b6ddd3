"""Sampling inside a graph, continued (sample.py): which ids may be the last one that top-k or top-p keeps, by passes over the vocabulary.

A pass cuts the keys that may be the last kept one at pivots, and sums what lies below each: how many ids, or their weights. The cut in which the sum
passes what may be left over is cut again, until what it holds fits the list of candidates.
Weights are summed in fp32, which costs a third of the whole numbers, and compared with a margin; what is kept is decided from exact ones (threshold.py).
Each program's sum is made a whole number, so atomics do not depend on their order.
Pivots lie evenly between logits, first by the distance from a high one of the groups' largest to the middle one, so that a few thousand ids are left of
any vocabulary that spreads as logits do; where more than the list holds are left, and differ, threshold.py reads the vocabulary, and is only slower.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next
from .sample import (  # fmt: skip
    _MODE, _TOP_K, _LEAST, _BY_K, _BY_P, _SCALE, _DRAWS, _NARROWS, _BOUND, _UPPER, _TOTAL, NO_KEY,
    penalised, halvings, weight_of, key_of, reached_in,
)

PASSES = 3
WAYS = 8  # sums of a pass: below each of 7 pivots, and of all
_WAYS, _PASSES = tl.constexpr(WAYS), tl.constexpr(PASSES)
_IMPOSSIBLE = tl.constexpr(-0x7F800001)  # the key of -inf, which all logits reach
_UNIT = tl.constexpr(2.0**40)  # the largest weight, ../../draw.py
# Of a program's fp32 sum, relative: weights 2^-21, and 2^-24 for each of at most 69 additions that an id goes through (64 ids a thread, 32 threads).
_ERROR = tl.constexpr(2.0**-16)


@triton.jit
def value_of(key):
    """key_of the other way round."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def pivot(n, low, high, upper, middle, FIRST: tl.constexpr):
    """Key number n, an int32 tensor, of the pivots that cut the keys from `low` up to but not `high`: descending.

    They lie in even steps of the logit. FIRST: from `upper` down in halves of the distance to `middle`, so that of normally distributed logits more than
    half lie between the pivots; then on below these, if it is there. Steps of the key where logits are infinite or do not differ.
    """
    wide = (value_of(upper) - value_of(middle)) * 0.5
    if FIRST:
        top, step, many = value_of(upper), wide, n
    else:
        top, many = value_of(high - 1), n + 1
        step = (top - value_of(low)) * 0.125
        step = tl.where(step < float("inf"), step, wide)
    even = high - (((high - low) * (n + 1).to(tl.int64)) >> 3)
    usable = (step > 0) & (step < float("inf")) & (top < float("inf"))
    by_value = key_of(tl.where(usable, top, 0.0) - tl.where(usable, step, 0.0) * many.to(tl.float32)).to(tl.int64)
    return tl.minimum(tl.maximum(tl.where(usable, by_value, even), low), high - 1)


@triton.jit
def narrowed(asked_ptr, shares_ptr, scales_ptr, found_ptr, top_ptr, sums_ptr, row, rows, vocab, PASSES: tl.constexpr):
    """(low, high, above, left) after some passes: the last kept key is at least `low` and below `high`, `above` ids reach `high` where ids are counted,
    and about `left` candidates lie between, at most."""
    mode, share = tl.load(asked_ptr + _MODE * rows + row), tl.load(shares_ptr + row)
    upper, middle = tl.load(found_ptr + _UPPER * rows + row), tl.load(found_ptr + _BOUND * rows + row)
    top, scale = tl.load(top_ptr + row), tl.load(scales_ptr + _SCALE * rows + row)
    by_k = (mode & _BY_K) > 0
    error = tl.where(by_k, 0.0, _ERROR).to(tl.float64)
    loose = tl.where(by_k, 0, 2 * vocab).to(tl.float64)  # weights are rounded down, by less than 1 an id
    spare = (vocab - tl.load(asked_ptr + _TOP_K * rows + row)).to(tl.float64)  # how much may lie below what is kept
    low, high = tl.zeros([], tl.int64) + _IMPOSSIBLE, key_of(top).to(tl.int64) + 1
    below_low = tl.zeros([], tl.int64)
    below_high = tl.zeros([], tl.int64) + vocab
    left = tl.zeros([], tl.float32) + vocab
    n = tl.arange(0, _WAYS)
    for done in tl.static_range(PASSES):
        sums_of = sums_ptr + (row * _PASSES + done) * _WAYS
        total = tl.load(sums_of + _WAYS - 1)
        if total > 0:  # a pass that was not necessary has summed nothing
            sums = tl.load(sums_of + n, n < _WAYS - 1, 0)
            if done == 0:
                spare = tl.where(by_k, spare, (1.0 - share) * total.to(tl.float64))
                below_high = tl.where(by_k, below_high, total)
            cut = pivot(n, low, high, upper, middle, done == 0)
            amount = sums.to(tl.float64)
            reached = (n < _WAYS - 1) & (amount + amount * error + loose <= spare - spare * error)
            missed = (n < _WAYS - 1) & (amount - amount * error - loose > spare + spare * error)
            low = tl.maximum(low, tl.max(tl.where(reached, cut, _IMPOSSIBLE), 0))
            high = tl.minimum(high, tl.min(tl.where(missed, cut, NO_KEY), 0))
            below_low = tl.maximum(below_low, tl.max(tl.where(reached, sums, 0), 0))
            below_high = tl.minimum(below_high, tl.min(tl.where(missed, sums, below_high), 0))
            between = tl.where(by_k & ((mode & _BY_P) > 0), vocab, below_high) - below_low
            each = tl.where(by_k, 1, weight_of(halvings(value_of(low), top, scale), 0))
            left = tl.minimum(left, between.to(tl.float32) / tl.maximum(each, 1).to(tl.float32))
            left = tl.where(low >= upper, 0.0, left)  # reached by few groups
    return low, high, vocab - below_high, left


@triton.jit
def interval(asked_ptr, shares_ptr, scales_ptr, found_ptr, top_ptr, sums_ptr, row, rows, vocab):
    """(low, high, need): candidates have keys from `low` up to but not `high`, all above are kept, and so many candidates top-k keeps. Those of a row
    with both go up to the largest, since top-p may keep fewer. There is none of a row that has neither."""
    mode = tl.load(asked_ptr + _MODE * rows + row)
    need = tl.load(asked_ptr + _TOP_K * rows + row)
    low, high = tl.zeros([], tl.int64) + _IMPOSSIBLE, tl.zeros([], tl.int64) + _IMPOSSIBLE
    if (mode & (_BY_K | _BY_P)) > 0:
        low, high = tl.load(found_ptr + _BOUND * rows + row), key_of(tl.load(top_ptr + row)).to(tl.int64) + 1
        if tl.load(found_ptr + _NARROWS * rows + row) > 0:
            low, below, above, _ = narrowed(asked_ptr, shares_ptr, scales_ptr, found_ptr, top_ptr, sums_ptr, row, rows, vocab, _PASSES)
            if (mode & (_BY_K | _BY_P)) != (_BY_K | _BY_P):
                high, need = below, need - above
    return low, high, need


@triton.jit
def narrow(
    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, sums_ptr, rows, vocab,
    PASS: tl.constexpr, PART: tl.constexpr, LIST: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """sums [row, pass, WAYS] int64: ids that lie below each of a pass's pivots, or their weights, and of all ids; 0 where what is left fits the list."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if (tl.load(found_ptr + _DRAWS * rows + row) > 0) & (tl.load(found_ptr + _NARROWS * rows + row) > 0):
        low, high, _, left = narrowed(asked_ptr, shares_ptr, scales_ptr, found_ptr, top_ptr, sums_ptr, row, rows, vocab, PASS)
        if left > LIST:
            ids = part * PART + tl.arange(0, PART)
            x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES, float("nan"))
            by_k = (tl.load(asked_ptr + _MODE * rows + row) & _BY_K) > 0
            below = halvings(x, tl.load(top_ptr + row), tl.load(scales_ptr + _SCALE * rows + row))
            least = tl.load(asked_ptr + _LEAST * rows + row)
            amount = tl.exp2(-tl.where(by_k, 0.0, below))
            if (least > 0) & (by_k == 0):
                amount = weight_of(below, least).to(tl.float32) * (1 / _UNIT)
            n_of = tl.arange(0, _WAYS)
            upper, middle = tl.load(found_ptr + _UPPER * rows + row), tl.load(found_ptr + _BOUND * rows + row)
            cuts = value_of(pivot(n_of, low, high, upper, middle, PASS == 0))
            sums = tl.where(n_of == _WAYS - 1, tl.sum(amount, 0), 0.0)
            for n in tl.static_range(_WAYS - 1):
                cut = tl.max(tl.where(n_of == n, cuts, -float("inf")), 0)
                sums = tl.where(n_of == n, tl.sum(tl.where(x < cut, amount, 0.0), 0), sums)
            whole = (sums * tl.where(by_k, 1.0, _UNIT)).to(tl.int64)
            tl.atomic_add(sums_ptr + (row * _PASSES + PASS) * _WAYS + n_of, whole, sem="relaxed")


@triton.jit
def weigh_and_mark(
    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, best_ptr, sums_ptr, bytes_ptr, parts_ptr,
    rows, vocab, groups, parts,
    PART: tl.constexpr, GROUP: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """parts [row, part] int64: the weight of what lies above the candidates; bytes [row, part * PART / 8] uint8: a bit for each candidate, the lowest id's
    is the least; TOTAL: the weight of all ids, where top-p alone asks for it."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(found_ptr + _DRAWS * rows + row) > 0:
        low, high, _ = interval(asked_ptr, shares_ptr, scales_ptr, found_ptr, top_ptr, sums_ptr, row, rows, vocab)
        by_share = (tl.load(asked_ptr + _MODE * rows + row) & (_BY_K | _BY_P)) == _BY_P
        top = tl.load(top_ptr + row)
        certain = tl.zeros([], tl.int64)
        byte = tl.zeros([PART // 8], tl.int32)
        if by_share | reached_in(best_ptr, row, part, groups, low, PART, GROUP):
            ids = part * PART + tl.arange(0, PART)
            # what is no number, beyond the vocabulary, weighs nothing and reaches nothing
            x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES, float("nan"))
            reach_low, reach_high = x >= value_of(low), x >= value_of(high)  # none reaches a `high` beyond infinity
            here = tl.reshape((reach_low & (reach_high == 0)).to(tl.int32), [PART // 8, 8])
            byte = tl.sum(here << tl.arange(0, 8)[None, :], 1)
            if by_share | (high <= key_of(top)):
                weight = weight_of(halvings(x, top, tl.load(scales_ptr + _SCALE * rows + row)), tl.load(asked_ptr + _LEAST * rows + row))
                certain = tl.sum(tl.where(reach_high, weight, 0), 0)
                if by_share:
                    tl.atomic_add(found_ptr + _TOTAL * rows + row, tl.sum(weight, 0), sem="relaxed")
        tl.store(parts_ptr + row * parts + part, certain)
        tl.store(bytes_ptr + (row * parts + part) * (PART // 8) + tl.arange(0, PART // 8), byte.to(tl.uint8))
