"""Sampling of a batch inside a graph, each row by its own parameters, which lie in buffers: the ids of ../../sampler.py, bit for bit.

A pass over the vocabulary is programs (row, part of PART ids); what decides between passes is one program a row. The order:
    largest_of_groups -> begin_draw   the largest logit, greedy ids; top-k: a logit that the k largest reach, from the groups' largest
    weigh_bins -> choose_bin          top-p alone: weights by distance from the largest, the bin in which top_p of the total is reached
    list_candidates -> find_threshold the few ids that may be the last one kept; exactly which one is (threshold.py)
    weigh_parts -> draw               weights kept of each part; the part, then the id, where the cumulative weight exceeds the draw
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
# Rows of the parameters `shares` [n, row] fp64: top_p, and how far below the largest 2^-far of every id is less than 1 - top_p of the total.
TOP_P, FAR, SHARES = range(3)
# Rows of the parameters `scales` [n, row] fp32.
SCALE, REPETITION, FREQUENCY, PRESENCE, SCALES = range(5)
# Rows of `found` [n, row] int64, what one kernel leaves for the next.
DRAWS, BOUND, BIN, BASE, LIMIT, TAIL, COUNT, THRESHOLD, CUT, FOUND = range(10)

_MODE, _TOP_K, _LEAST, _SEED, _STEP = (tl.constexpr(n) for n in (MODE, TOP_K, LEAST, SEED, STEP))
_SAMPLED, _BY_K, _BY_P = (tl.constexpr(n) for n in (SAMPLED, BY_K, BY_P))
_TOP_P, _FAR = tl.constexpr(TOP_P), tl.constexpr(FAR)
_SCALE, _REPETITION, _FREQUENCY, _PRESENCE = (tl.constexpr(n) for n in (SCALE, REPETITION, FREQUENCY, PRESENCE))
_DRAWS, _BOUND, _BIN, _BASE, _LIMIT, _TAIL, _COUNT, _THRESHOLD, _CUT = (
    tl.constexpr(n) for n in (DRAWS, BOUND, BIN, BASE, LIMIT, TAIL, COUNT, THRESHOLD, CUT)
)
_C1, _C2, _C3, _C4, _C5, _C6 = (tl.constexpr(c) for c in EXP2[1:])
_SHIFT = tl.constexpr(WEIGHT_BITS - 24)
LEAST_KEY = tl.constexpr(-(2**31))
NO_KEY = tl.constexpr(2**40)  # beyond all keys
NO_ID = tl.constexpr(2**31 - 1)
PER_BINARY_DIGIT = tl.constexpr(48.0)  # bins of one halving of the weight: 41 of them and more hold every weight


@triton.jit
def penalised(logits_ptr, row, ids, inside, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES: tl.constexpr):
    """Logits of some ids after the penalties, fp32, -0 as 0; -inf outside."""
    x = tl.load(logits_ptr + row * vocab + ids, inside, -float("inf")).to(tl.float32)
    if PENALTIES:
        count = tl.load(count_ptr + row * vocab + ids, inside, 0)
        seen = (tl.load(prompt_ptr + row * vocab + ids, inside, 0) > 0) | (count > 0)
        repetition = tl.load(scales_ptr + _REPETITION * rows + row)
        repeated = tl.where(x > 0, tl.math.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
        x = tl.where(seen, repeated, x)
        x = x - tl.load(scales_ptr + _FREQUENCY * rows + row) * count.to(tl.float32)
        x = x - tl.load(scales_ptr + _PRESENCE * rows + row) * (count > 0).to(tl.float32)
    return tl.where(x == 0.0, 0.0, x)


@triton.jit
def key_of(x):
    """fp32 as a signed 32 bit number of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def halvings(x, largest, scale):
    """How often the weight of a logit is halved from the largest, 63 at most."""
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
    weight = ((value * 16777216.0).to(tl.int64) << _SHIFT) >> whole.to(tl.int64)
    return tl.where(weight < least, 0, weight)


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
    best_ptr, best_id_ptr, asked_ptr, found_ptr, top_ptr, bins_ptr, ids_ptr, rows, groups,
    BLOCK: tl.constexpr, BINS: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """ids[row]: the largest logit's, -1 if one is no number; top[row]: that logit; `found` and `bins` begin anew."""
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
    bound = tl.zeros([], tl.int64) + LEAST_KEY
    if ((mode & _BY_K) > 0) & (k <= groups):
        key = key_of(best)
        for step in range(32):
            raised = bound + (tl.full([], 1, tl.int64) << (31 - step))
            reach = tl.sum(((key >= raised) & (group < groups)).to(tl.int32), 0)
            bound = tl.where(reach >= k, raised, bound)
    tl.store(found_ptr + _DRAWS * rows + row, tl.where(chosen < 0, 0, mode & _SAMPLED))
    tl.store(found_ptr + _BOUND * rows + row, bound)
    tl.store(found_ptr + _BIN * rows + row, -1)
    tl.store(found_ptr + _BASE * rows + row, 0)
    tl.store(found_ptr + _LIMIT * rows + row, 0)
    tl.store(found_ptr + _TAIL * rows + row, 0)
    tl.store(found_ptr + _COUNT * rows + row, 0)
    tl.store(found_ptr + _THRESHOLD * rows + row, LEAST_KEY)
    tl.store(found_ptr + _CUT * rows + row, NO_ID)
    tl.store(bins_ptr + row * BINS + tl.arange(0, BINS), tl.zeros([BINS], tl.int64))


@triton.jit
def by_p_alone(asked_ptr, found_ptr, row, rows):
    draws = tl.load(found_ptr + _DRAWS * rows + row) > 0
    return draws & ((tl.load(asked_ptr + _MODE * rows + row) & (_BY_K | _BY_P)) == _BY_P)


@triton.jit
def bin_of(below):
    return (below * PER_BINARY_DIGIT).to(tl.int32)


@triton.jit
def weigh_bins(
    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, bins_ptr, rows, vocab,
    PART: tl.constexpr, BINS: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """bins [row, bin]: weights by distance from the largest logit, of rows with top-p and no top-k; what is too far to be kept is one sum."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if by_p_alone(asked_ptr, found_ptr, row, rows):
        ids = part * PART + tl.arange(0, PART)
        x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
        below = halvings(x, tl.load(top_ptr + row), tl.load(scales_ptr + _SCALE * rows + row))
        weight = tl.where(ids < vocab, weight_of(below, tl.load(asked_ptr + _LEAST * rows + row)), 0)
        near = below < tl.load(shares_ptr + _FAR * rows + row).to(tl.float32)
        tl.atomic_add(bins_ptr + row * BINS + bin_of(below), weight, near & (weight > 0), sem="relaxed")
        far = tl.sum(tl.where(near, 0, weight), 0)
        if far > 0:
            tl.atomic_add(found_ptr + _TAIL * rows + row, far, sem="relaxed")


@triton.jit
def choose_bin(asked_ptr, shares_ptr, found_ptr, bins_ptr, rows, BINS: tl.constexpr, CHAINED: tl.constexpr = False):
    """The bin in which the weights from the largest down reach top_p of the total, and what lies above it."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if by_p_alone(asked_ptr, found_ptr, row, rows):
        weights = tl.load(bins_ptr + row * BINS + tl.arange(0, BINS))
        total = tl.sum(weights, 0) + tl.load(found_ptr + _TAIL * rows + row)
        limit = share_of(total, tl.load(shares_ptr + _TOP_P * rows + row))
        under = tl.cumsum(weights, 0) < limit
        tl.store(found_ptr + _LIMIT * rows + row, limit)
        tl.store(found_ptr + _BIN * rows + row, tl.sum(under.to(tl.int64), 0))
        tl.store(found_ptr + _BASE * rows + row, tl.sum(tl.where(under, weights, 0), 0))


@triton.jit
def candidate(x, below, weight, bound, chosen_bin):
    """What may be the last id that is kept: of top-k at least the bound, of top-p alone in the chosen bin."""
    return tl.where(chosen_bin < 0, key_of(x) >= bound, (bin_of(below) == chosen_bin) & (weight > 0))


@triton.jit
def list_candidates(
    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, list_ptr, rows, vocab,
    PART: tl.constexpr, LIST: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """list [row, LIST]: the first of the candidates, in any order; COUNT: how many there are."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    draws = tl.load(found_ptr + _DRAWS * rows + row) > 0
    if draws & ((tl.load(asked_ptr + _MODE * rows + row) & (_BY_K | _BY_P)) > 0):
        ids = part * PART + tl.arange(0, PART)
        x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
        below = halvings(x, tl.load(top_ptr + row), tl.load(scales_ptr + _SCALE * rows + row))
        weight = weight_of(below, tl.load(asked_ptr + _LEAST * rows + row))
        bound, chosen_bin = tl.load(found_ptr + _BOUND * rows + row), tl.load(found_ptr + _BIN * rows + row)
        listed = (candidate(x, below, weight, bound, chosen_bin) & (ids < vocab)).to(tl.int32)
        count = tl.sum(listed, 0)
        if count > 0:
            first = tl.atomic_add(found_ptr + _COUNT * rows + row, count.to(tl.int64), sem="relaxed")
            place = first + tl.cumsum(listed, 0) - 1
            tl.store(list_ptr + row * LIST + place, ids, (listed > 0) & (place < LIST))


@triton.jit
def kept_weights(
    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, row, part, rows, vocab, PART: tl.constexpr, PENALTIES: tl.constexpr
):
    """Weights of a part of the vocabulary, 0 where an id is not kept."""
    ids = part * PART + tl.arange(0, PART)
    x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
    below = halvings(x, tl.load(top_ptr + row), tl.load(scales_ptr + _SCALE * rows + row))
    weight = weight_of(below, tl.load(asked_ptr + _LEAST * rows + row))
    key, low = key_of(x).to(tl.int64), tl.load(found_ptr + _THRESHOLD * rows + row)
    kept = (key > low) | ((key == low) & (ids <= tl.load(found_ptr + _CUT * rows + row)))
    return tl.where((ids < vocab) & kept, weight, 0)


@triton.jit
def weigh_parts(
    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, parts_ptr, rows, vocab, parts,
    PART: tl.constexpr, PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """parts [row, part] int64: the weight that is kept of each part."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(found_ptr + _DRAWS * rows + row) > 0:
        weight = kept_weights(logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, row, part, rows, vocab, PART, PENALTIES)
        tl.store(parts_ptr + row * parts + part, tl.sum(weight, 0))


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
        low, high = (step & 0xFFFFFFFF).to(tl.uint32), ((step >> 32) & 0xFFFFFFFF).to(tl.uint32)
        zero = tl.zeros_like(low)
        first, second, _, _ = tl.philox(tl.load(asked_ptr + _SEED * rows + row), low, high, zero, zero)
        bits = (second.to(tl.int64) << 21) | (first.to(tl.int64) >> 11)
        at = bits.to(tl.float64) * 1.1102230246251565e-16  # 2^-53
        target = tl.minimum((at * total.to(tl.float64)).to(tl.int64), total - 1)
        passed = tl.cumsum(weights, 0) <= target
        part = tl.sum((passed & (n < parts)).to(tl.int32), 0)
        target -= tl.sum(tl.where(passed, weights, 0), 0)
        weight = kept_weights(logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, row, part, rows, vocab, PART, PENALTIES)
        chosen = (part * PART + tl.sum((tl.cumsum(weight, 0) <= target).to(tl.int32), 0)).to(tl.int64)
        tl.store(ids_ptr + row, chosen)
    tl.store(asked_ptr + _STEP * rows + row, step + 1)
    if PENALTIES:
        place = count_ptr + row * vocab + tl.maximum(chosen, 0)
        tl.store(place, tl.load(place) + 1, chosen >= 0)
