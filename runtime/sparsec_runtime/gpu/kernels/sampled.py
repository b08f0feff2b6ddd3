"""Exact ranking of long lines by many programs, in two launches: a sample of each line says between which two keys the least of its best almost surely is.

The first launch counts, part by part, the keys above, at and below these two, and hands on those between. In the second, every program finds the least key
of the best among what is between, in all parts, and lists its own part's entries behind those of the parts before. Where the sample was wrong, the counts
say so, and the key is found bit by bit in the whole line: what is listed never depends on the sample, only the time does.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next
from .rank import ALWAYS, candidates_of, cut, ends_of, entries_of, line_keys, search, sums_to_each, taken_and_place


@triton.jit
def bracket(score_ptr, entries, count, first, newest, SAMPLE: tl.constexpr):
    """Two keys, low and high: about four standard deviations of the sample below and above the `count` best; 0 and ALWAYS where the sample does not reach so far.

    One entry of each of SAMPLE equal stretches of the line, anywhere in it: no period of the scores meets them all.
    """
    n = entries_of(SAMPLE)
    mixed = n.to(tl.uint32) * 2654435769
    within = ((mixed ^ (mixed >> 15)) & 0xFFFF).to(tl.int64)
    at = ((n.to(tl.int64) * entries + (within * entries >> 16)) // SAMPLE).to(tl.int32)
    key = line_keys(score_ptr, at, entries, first, newest)
    rank = tl.minimum(count.to(tl.float32) / tl.maximum(entries, 1).to(tl.float32), 1.0) * SAMPLE
    doubt = (4 * tl.sqrt(rank * (1 - rank / SAMPLE))).to(tl.int32) + 2
    slack = doubt // 4 + 1
    many, few = rank.to(tl.int32) + 1 + doubt, rank.to(tl.int32) - doubt - slack
    least, beyond = ends_of(key)
    low, _, _ = search(key, least, beyond, many, many + slack)
    high, _, _ = search(key, low, beyond, few, few + slack)
    return tl.where(many > SAMPLE, 0, low).to(tl.uint32), tl.where(few < 1, ALWAYS, high).to(tl.uint32)


@triton.jit
def count_parts(
    score_ptr, len_ptr, count_ptr, first_ptr, newest_ptr, told_ptr, between_ptr, score_line,
    H: tl.constexpr, UNIT: tl.constexpr, ENDS: tl.constexpr, BLOCK: tl.constexpr, SAMPLE: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """told [line, part, 6]: how many keys of BLOCK entries are above high, high, between, low; and low and high. between [line, part, BLOCK]: the keys between.

    Program (line, part); parts that begin behind a line's last entry are left out. The rest as kernels/rank.py, rank_line.
    """
    after_previous(CHAINED)
    let_next(CHAINED)
    line, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count, entries, first, newest = candidates_of(len_ptr, count_ptr, first_ptr, newest_ptr, line, H, UNIT, ENDS)
    score_ptr += line * score_line
    if part * BLOCK < entries:
        key = line_keys(score_ptr, part * BLOCK + entries_of(BLOCK), entries, first, newest)
        low, high = bracket(score_ptr, entries, count, first, newest, SAMPLE)
        between = (key > low) & (key < high)
        upper = tl.sum((key > high).to(tl.int32) + ((key == high).to(tl.int32) << 16))
        lower = between.to(tl.int32) + (((key == low) & (low > 0) & (low < high)).to(tl.int32) << 16)
        seen = sums_to_each(lower)
        at = line * tl.num_programs(1) + part
        tl.store(between_ptr + at * BLOCK + (seen & 0xFFFF) - 1, key.to(tl.int32, bitcast=True), between)
        lower = tl.sum(lower)
        tl.store(told_ptr + at * 6, upper & 0xFFFF)
        tl.store(told_ptr + at * 6 + 1, (upper >> 16) & 0xFFFF)
        tl.store(told_ptr + at * 6 + 2, lower & 0xFFFF)
        tl.store(told_ptr + at * 6 + 3, (lower >> 16) & 0xFFFF)
        tl.store(told_ptr + at * 6 + 4, low.to(tl.int32, bitcast=True))
        tl.store(told_ptr + at * 6 + 5, high.to(tl.int32, bitcast=True))


@triton.jit
def least_bit_by_bit(score_ptr, entries, count, first, newest, BLOCK: tl.constexpr):
    """The least key of the `count` best of a line of any length, or 1 where fewer are candidates, and how many keys are above it."""
    n = entries_of(BLOCK)
    least, reached, bit = tl.full([], 0, tl.uint32), -1, tl.full([], 1 << 31, tl.uint32)
    while (bit != 0) & (reached != count):
        tried = least | bit
        reaching = n * 0
        for start in range(0, entries, BLOCK):
            reaching += (line_keys(score_ptr, start + n, entries, first, newest) >= tried).to(tl.int32)
        found = tl.sum(reaching)
        least = tl.where(found >= count, tried, least)
        reached = tl.where(found >= count, found, reached)
        bit = bit >> 1
    least = tl.maximum(least, tl.full([], 1, tl.uint32))
    above = n * 0
    for start in range(0, entries, BLOCK):
        above += (line_keys(score_ptr, start + n, entries, first, newest) > least).to(tl.int32)
    return least, tl.sum(above)


@triton.jit
def counted_before(score_ptr, end, entries, first, newest, least, BLOCK: tl.constexpr):
    """How many of the first `end` keys of a line are above `least`, and how many equal it."""
    n = entries_of(BLOCK)
    above, ties = n * 0, n * 0
    for start in range(0, end, BLOCK):
        key = line_keys(score_ptr, start + n, entries, first, newest)
        above += (key > least).to(tl.int32)
        ties += (key == least).to(tl.int32)
    return tl.sum(above), tl.sum(ties)


@triton.jit
def list_parts(
    score_ptr, len_ptr, count_ptr, first_ptr, newest_ptr, told_ptr, between_ptr, listed_ptr, score_line, listed_line,
    H: tl.constexpr, UNIT: tl.constexpr, ENDS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, ROOM: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """listed [line, n]: the entries of one part that are among the count[row] best of the line, behind those of the parts before. Program (line, part).

    told, between: what count_parts wrote; PARTS: of a line, at most, a power of two; ROOM: keys between that are looked at.
    """
    after_previous(CHAINED)
    let_next(CHAINED)
    line, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count, entries, first, newest = candidates_of(len_ptr, count_ptr, first_ptr, newest_ptr, line, H, UNIT, ENDS)
    score_ptr += line * score_line
    told_ptr += line * tl.num_programs(1) * 6
    begin = part * BLOCK
    if begin < entries:
        entry = begin + entries_of(BLOCK)
        key = line_keys(score_ptr, entry, entries, first, newest)
        p = tl.arange(0, PARTS)
        above = tl.load(told_ptr + p * 6, p * BLOCK < entries, 0)
        at_high = tl.load(told_ptr + p * 6 + 1, p * BLOCK < entries, 0)
        between = tl.load(told_ptr + p * 6 + 2, p * BLOCK < entries, 0)
        at_low = tl.load(told_ptr + p * 6 + 3, p * BLOCK < entries, 0)
        low = tl.load(told_ptr + 4).to(tl.uint32, bitcast=True)
        high = tl.load(told_ptr + 5).to(tl.uint32, bitcast=True)
        over, upper, inner, lower = tl.sum(above), tl.sum(above + at_high), tl.sum(between), tl.sum(at_low)
        # The key; how many places are left for those that equal it; how many of the parts before are above it, and equal it.
        least, left = low, count - upper - inner
        before, ties = tl.sum(tl.where(p < part, above + at_high + between, 0)), tl.sum(tl.where(p < part, at_low, 0))
        if (over > count) | ((upper < count) & (inner > ROOM)) | ((upper + inner + lower < count) & (low > 0)):
            least, more = least_bit_by_bit(score_ptr, entries, count, first, newest, BLOCK)
            left = count - more
            before, ties = counted_before(score_ptr, begin, entries, first, newest, least, BLOCK)
        elif upper >= count:
            least, left = high, count - over
            before, ties = tl.sum(tl.where(p < part, above, 0)), tl.sum(tl.where(p < part, at_high, 0))
        elif upper + inner >= count:
            n = entries_of(ROOM)
            at, end = n, 0
            for other in tl.static_range(PARTS):
                some = tl.load(told_ptr + other * 6 + 2, other * BLOCK < entries, 0)
                end += some
                at += tl.where(n >= end, BLOCK - some, 0)
            some = tl.load(between_ptr + line * tl.num_programs(1) * BLOCK + at, n < inner, 0).to(tl.uint32, bitcast=True)
            need = count - upper
            least, reached, beyond = search(some, low + 1, high, need, need)
            least, left = cut(some, least, reached, beyond, need)
            earlier = n < tl.sum(tl.where(p < part, between, 0))
            both = tl.sum((earlier & (some > least)).to(tl.int32) + ((earlier & (some == least)).to(tl.int32) << 16))
            before = tl.sum(tl.where(p < part, above + at_high, 0)) + (both & 0xFFFF)
            ties = (both >> 16) & 0xFFFF
        taken, at = taken_and_place(key, least, tl.maximum(left - ties, 0))
        tl.store(listed_ptr + line * listed_line + before + tl.minimum(ties, left) + at, entry, taken)
