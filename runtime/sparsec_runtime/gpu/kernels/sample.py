"""Sampling of a batch inside a graph, each row by its own parameters, which lie in buffers: the ids of ../../sampler.py, bit for bit.

A pass over the vocabulary is programs (row, part of PART ids); what decides between passes is one program a row. The order:
    largest_of_groups -> begin_draw   the largest logit, greedy ids; top-k: a logit that the k largest reach, from the groups' largest
    narrow, narrow, narrow            top-p alone, and a top-k of more ids than there are groups: where the last one kept may lie (narrow.py)
    weigh_and_mark                    a bit for each id that lies there, and of each part the weight of those that are kept for certain
    find_threshold                    exactly which id is the last one kept, and the weight of those marked that are (threshold.py)
    draw                              the part, then the id, where the cumulative weight exceeds the draw
Weights are whole numbers (../../draw.py), so atomic sums do not depend on their order. Every kernel must be launched without fused multiply-adds.
Ids are kept from the largest logit down, equal logits from the lowest id: (threshold, cut) keeps larger keys, and equal ones up to id `cut`.
"""

import triton
import triton.language as tl

from ...draw import EXP2, WEIGHT_BITS
from .chain import after_previous, let_next

# Rows of the parameters `asked` [n, row] int64, and bits of the first.
MODE, TOP_K, LEAST, SEED, STEP, ASKED = range(6)
SAMPLED, BY_K, BY_P = 1, 2, 4
# Rows of the parameters `scales` [n, row] fp32.
SCALE, REPETITION, FREQUENCY, PRESENCE, SCALES = range(5)
# Rows of `found` [n, row] int64, what one kernel leaves for the next.
DRAWS, NARROWS, BOUND, UPPER, TOTAL, COUNT, THRESHOLD, CUT, FOUND = range(9)

_MODE, _TOP_K, _LEAST, _SEED, _STEP = (tl.constexpr(n) for n in (MODE, TOP_K, LEAST, SEED, STEP))
_SAMPLED, _BY_K, _BY_P = (tl.constexpr(n) for n in (SAMPLED, BY_K, BY_P))
_SCALE, _REPETITION, _FREQUENCY, _PRESENCE = (tl.constexpr(n) for n in (SCALE, REPETITION, FREQUENCY, PRESENCE))
_DRAWS, _NARROWS, _BOUND, _UPPER, _TOTAL = (tl.constexpr(n) for n in (DRAWS, NARROWS, BOUND, UPPER, TOTAL))
_COUNT, _THRESHOLD, _CUT = (tl.constexpr(n) for n in (COUNT, THRESHOLD, CUT))
_C1, _C2, _C3, _C4, _C5, _C6 = (tl.constexpr(c) for c in EXP2[1:])
_SHIFT = tl.constexpr(WEIGHT_BITS - 24)
LEAST_KEY = tl.constexpr(-(2**31))
NO_KEY = tl.constexpr(2**40)  # beyond all keys
NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def penalised(
    logits_ptr, row, ids, inside, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES: tl.constexpr, OUTSIDE: tl.constexpr = -float("inf")
):
    """Logits of some ids after the penalties, fp32, -0 as 0; OUTSIDE where not `inside`."""
    x = tl.load(logits_ptr + row * vocab + ids, inside, OUTSIDE).to(tl.float32)
    if PENALTIES:
        count = tl.load(count_ptr + row * vocab + ids, inside, 0)
        seen = (tl.load(prompt_ptr + row * vocab + ids, inside, 0) > 0) | (count > 0)
        repetition = tl.load(scales_ptr + _REPETITION * rows + row)
        repeated = tl.where(x > 0, tl.math.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
        x = tl.where(seen, repeated, x)
        x = x - tl.load(scales_ptr + _FREQUENCY * rows + row) * count.to(tl.float32)
        x = x - tl.load(scales_ptr + _PRESENCE * rows + row) * (count > 0).to(tl.float32)
    return x + 0.0


@triton.jit
def key_of(x):
    """fp32 as a signed 32 bit number of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def halvings(x, largest, scale):
    """How often the weight of a logit is halved from the largest, 63 at most, which leaves nothing; 63 where it is no number."""
    below = tl.where(x == largest, 0.0, largest - x) * scale
    return tl.minimum(below, 63.0)


@triton.jit
def weight_of(below, least):
    """2^40 * 2^-below, rounded down; 0 if less than `least`."""
    whole = below.to(tl.int32)
    part = below - whole.to(tl.float32)
    value = tl.zeros_like(part) + _C6
    value = value * part + _C5
    value = value * part + _C4
    value = value * part + _C3
    value = value * part + _C2
    value = value * part + _C1
    value = value * part + 1.0
    weight = ((value * 16777216.0).to(tl.int32).to(tl.int64) << _SHIFT) >> whole.to(tl.int64)
    return tl.where(weight < least, 0, weight)


@triton.jit
def weight_in_row(x, asked_ptr, scales_ptr, top_ptr, row, rows):
    """Weights of logits of a row, by its largest logit, its scale and the least weight that it keeps."""
    below = halvings(x, tl.load(top_ptr + row), tl.load(scales_ptr + _SCALE * rows + row))
    return weight_of(below, tl.load(asked_ptr + _LEAST * rows + row))


@triton.jit
def share_of(total, share):
    """The least whole weight that is at least `share` of `total`."""
    product = share * total.to(tl.float64)
    whole = product.to(tl.int64)
    return whole + (whole.to(tl.float64) < product).to(tl.int64)


@triton.jit
def largest_of_groups(
    logits_ptr, scales_ptr, prompt_ptr, count_ptr, best_ptr, best_id_ptr, rows, vocab, groups,
    PART: tl.constexpr, GROUP: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """best, best_id [row, group of GROUP ids]: the largest logit and its id, ties to the lower; a NaN wins, as id -1."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * PART + tl.arange(0, PART)
    x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
    ids = tl.reshape(ids, [PART // GROUP, GROUP])
    x = tl.reshape(x, [PART // GROUP, GROUP])
    bad = tl.max((x != x).to(tl.int32), 1) > 0
    x = tl.where(x != x, -float("inf"), x)
    best = tl.max(x, 1)
    where = tl.min(tl.where((x == best[:, None]) & (ids < vocab), ids, NO_ID), 1)
    group = part * (PART // GROUP) + tl.arange(0, PART // GROUP)
    tl.store(best_ptr + row * groups + group, tl.where(bad, float("inf"), best), group < groups)
    tl.store(best_id_ptr + row * groups + group, tl.where(bad, -1, where), group < groups)


@triton.jit
def begin_draw(
    best_ptr, best_id_ptr, asked_ptr, found_ptr, top_ptr, sums_ptr, ids_ptr, rows, groups,
    BLOCK: tl.constexpr, SUMS: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """ids[row]: the largest logit's, -1 if one is no number; top[row]: that logit; BOUND: a key that as many of the groups' largest reach as top-k keeps
    or, in rows that NARROWS marks, half of them; UPPER: one that few of them reach. The rest of `found`, and `sums` [row, SUMS], begin anew."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * groups + group, group < groups, -float("inf"))
    ids = tl.load(best_id_ptr + row * groups + group, group < groups, NO_ID)
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, ids, NO_ID), 0)
    tl.store(ids_ptr + row, chosen.to(tl.int64))
    tl.store(top_ptr + row, top)
    mode = tl.load(asked_ptr + _MODE * rows + row)
    k = tl.load(asked_ptr + _TOP_K * rows + row)
    few = ((mode & _BY_K) > 0) & (k <= groups)
    reached_by = tl.where(few, k, (groups + 1) // 2).to(tl.int32)
    bound = tl.zeros([], tl.int64) + LEAST_KEY
    upper = bound
    if (mode & (_BY_K | _BY_P)) > 0:
        key = tl.where(group < groups, key_of(best), LEAST_KEY)
        for step in range(32):
            raised = bound + (tl.full([], 1, tl.int64) << (31 - step))
            reach = tl.sum((key >= raised.to(tl.int32)).to(tl.int32), 0)
            bound = tl.where(reach >= reached_by, raised, bound)
            above = upper + (tl.full([], 1, tl.int64) << (31 - step))
            reach = tl.sum((key >= above.to(tl.int32)).to(tl.int32), 0)
            upper = tl.where(reach >= groups // 64 + 2, above, upper)
    tl.store(found_ptr + _DRAWS * rows + row, tl.where(chosen < 0, 0, mode & _SAMPLED))
    tl.store(found_ptr + _NARROWS * rows + row, (((mode & (_BY_K | _BY_P)) > 0) & (few == 0)).to(tl.int64))
    tl.store(found_ptr + _BOUND * rows + row, bound)
    tl.store(found_ptr + _UPPER * rows + row, tl.maximum(upper, bound))
    tl.store(found_ptr + _TOTAL * rows + row, 0)
    tl.store(found_ptr + _COUNT * rows + row, 0)
    tl.store(found_ptr + _THRESHOLD * rows + row, LEAST_KEY)
    tl.store(found_ptr + _CUT * rows + row, NO_ID)
    for first in tl.static_range(0, SUMS, 8):
        tl.store(sums_ptr + row * SUMS + first + tl.arange(0, 8), tl.zeros([8], tl.int64))


@triton.jit
def reached_in(best_ptr, row, part, groups, key, PART: tl.constexpr, GROUP: tl.constexpr):
    """Whether a logit of a part reaches `key`, from its groups' largest."""
    group = part * (PART // GROUP) + tl.arange(0, PART // GROUP)
    best = tl.load(best_ptr + row * groups + group, group < groups, -float("inf"))
    return tl.max(key_of(best), 0) >= key


@triton.jit
def weights_down_to(
    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, part, rows, vocab, low, cut, PART: tl.constexpr, PENALTIES: tl.constexpr
):
    """Weights of a part of the vocabulary, 0 where (low, cut) do not keep an id."""
    ids = part * PART + tl.arange(0, PART)
    x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
    weight = weight_in_row(x, asked_ptr, scales_ptr, top_ptr, row, rows)
    key = key_of(x).to(tl.int64)
    return tl.where((ids < vocab) & ((key > low) | ((key == low) & (ids <= cut))), weight, 0)


@triton.jit
def draw(
    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, parts_ptr, ids_ptr, rows, vocab, parts,
    PART: tl.constexpr, BLOCK: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """ids[row]: where the cumulative weight in id order first exceeds the row's random fraction of the total. Counts the step, and the id."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    step = tl.load(asked_ptr + _STEP * rows + row)
    chosen = tl.load(ids_ptr + row)
    if tl.load(found_ptr + _DRAWS * rows + row) > 0:
        n = tl.arange(0, BLOCK)
        weights = tl.load(parts_ptr + row * parts + n, n < parts, 0)
        total = tl.sum(weights, 0)
        early, late = (step & 0xFFFFFFFF).to(tl.uint32), ((step >> 32) & 0xFFFFFFFF).to(tl.uint32)
        zero = tl.zeros_like(early)
        first, second, _, _ = tl.philox(tl.load(asked_ptr + _SEED * rows + row), early, late, zero, zero)
        bits = (second.to(tl.int64) << 21) | (first.to(tl.int64) >> 11)
        at = bits.to(tl.float64) * 1.1102230246251565e-16  # 2^-53
        target = tl.minimum((at * total.to(tl.float64)).to(tl.int64), total - 1)
        passed = tl.cumsum(weights, 0) <= target
        part = tl.sum((passed & (n < parts)).to(tl.int32), 0)
        target -= tl.sum(tl.where(passed, weights, 0), 0)
        low, cut = tl.load(found_ptr + _THRESHOLD * rows + row), tl.load(found_ptr + _CUT * rows + row)
        weight = weights_down_to(
            logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, part, rows, vocab, low, cut, PART, PENALTIES
        )  # fmt: skip
        chosen = (part * PART + tl.sum((tl.cumsum(weight, 0) <= target).to(tl.int32), 0)).to(tl.int64)
        tl.store(ids_ptr + row, chosen)
    tl.store(asked_ptr + _STEP * rows + row, step + 1)
    if PENALTIES:
        place = count_ptr + row * vocab + tl.maximum(chosen, 0)
        tl.store(place, tl.load(place) + 1, chosen >= 0)
