"""Exact ranking of lines of scores: the `count` best entries of each, ties to the lower index, listed in ascending order of index.

Order: NaN after every number, what is no candidate never (as sparsec_runtime/ops/ranking.py). The least key of the best is found by halving the range
of keys that numbers have; the search ends early where exactly `count` keys reach it. No histogram, no atomics.
A line that is too long for one program is ranked in parts, whose best are ranked once more, or by the best of groups of entries, where these are known:
the `count` best entries lie in the `count` best groups. Or a sample of a line says between which two keys the least of the best is (kernels/sampled.py).
Keys lie side by side in the threads of a warp, in loads, counts and stores alike: no value changes its thread, which would take a barrier each time.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next

ALWAYS = tl.constexpr(0xFFFFFFFF)  # the key of an entry that is taken first; no number has it
WARP = tl.constexpr(32)


@triton.jit
def entries_of(BLOCK: tl.constexpr):
    """0 .. BLOCK - 1, one to a thread and then the next; a thread would read four in one, and every place to store at would change threads."""
    return tl.max_contiguous(tl.arange(0, BLOCK), [1])


@triton.jit
def ordered(x):
    """fp32 as an unsigned 32 bit key of the same order: 1 for NaN, more for numbers; 0 is left for what is no candidate. 0.0 and -0.0 are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, ~bits, bits ^ -2147483648)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 1, key).to(tl.uint32, bitcast=True)


@triton.jit
def keys_of(score, entry, entries, first, newest):
    """Keys of a line's entries: the `first` and the `newest` are always taken, those from `entries` on never."""
    key = tl.where((entry < first) | (entry >= entries - newest), ALWAYS, ordered(score))
    return tl.where(entry < entries, key, 0)


@triton.jit
def line_keys(score_ptr, entry, entries, first, newest):
    """Keys of entries of one line, 0 behind its last."""
    return keys_of(tl.load(score_ptr + entry, entry < entries, 0.0), entry, entries, first, newest)


@triton.jit
def candidates_of(len_ptr, count_ptr, first_ptr, newest_ptr, line, H: tl.constexpr, UNIT: tl.constexpr, ENDS: tl.constexpr):
    """Of the row of line = row * H + h: count[row], its ceil(len / UNIT) entries, and how many of the first and of the newest are always taken.

    ENDS: first[row] and newest[row]; else the last one alone, and first and newest are not read. Nothing here waits for scores.
    """
    row = line // H
    count = tl.load(count_ptr + row)
    entries = (tl.load(len_ptr + row) + UNIT - 1) // UNIT
    first, newest = tl.load(first_ptr + row) if ENDS else 0, tl.load(newest_ptr + row) if ENDS else 1
    return count, entries, first, newest


@triton.jit
def ends_of(key):
    """The least key of a candidate, and the one above that of every number."""
    return tl.min(tl.where(key > 0, key, ALWAYS)), tl.max(tl.where(key < ALWAYS, key, 0)) + 1


@triton.jit
def search(key, least, beyond, count, most):
    """A key that `count` to `most` keys reach or, where too many equal the least of the best, that one's key; `least` where fewer than `count` are candidates.

    `least` is reached by `count` keys, if that many are candidates; `beyond` is above all numbers, or reached by fewer. Also says how many keys reach the
    result, and how many reach what was found to be too much; each -1 where the search did not need to know. Two keys are tried at once: as many barriers
    as for one.
    """
    reached, over = -1, -1
    while (beyond > least) & (beyond - least > 1) & ((reached < 0) | (reached > most)):
        step = (beyond - least - 1) // 3 + 1
        near, far = least + step, least + 2 * step
        both = tl.sum((key >= near).to(tl.int32) + ((key >= far).to(tl.int32) << 16))
        at_near, at_far = both & 0xFFFF, (both >> 16) & 0xFFFF
        beyond = tl.where(at_near < count, near, tl.where(at_far < count, far, beyond))
        over = tl.where(at_near < count, at_near, tl.where(at_far < count, at_far, over))
        least = tl.where(at_far >= count, far, tl.where(at_near >= count, near, least))
        reached = tl.where(at_far >= count, at_far, tl.where(at_near >= count, at_near, reached))
    return least, reached, over


@triton.jit
def cut(key, least, reached, over, most):
    """`least` and `left` of `taken_and_place` after a search: where too many keys equal its result, as many as there is room for; where more than `most`
    are always taken, those alone."""
    left = 0
    if (reached < 0) | (reached > most):
        if over < 0:
            over = tl.sum((key > least).to(tl.int32))
        left = tl.where(over > most, most, most - over)
        least = tl.where(over > most, ALWAYS, least)
    else:
        least -= 1
    return least, left


@triton.jit
def sums_to_each(x):
    """Inclusive sums of x [BLOCK], inside warps and then over them."""
    WIDE: tl.constexpr = WARP if x.shape[0] > WARP else x.shape[0]
    rows = tl.reshape(x, [x.shape[0] // WIDE, WIDE])
    of_row = tl.sum(rows, 1)
    return tl.reshape((tl.cumsum(of_row, 0) - of_row)[:, None] + tl.cumsum(rows, 1), [x.shape[0]])


@triton.jit
def taken_and_place(key, least, left):
    """Which keys are above `least` or among the first `left` that equal it, and the place of each among them; at most 2^15 keys, since two counts share a word."""
    above, ties = key > least, (key == least) & (key > 0)
    seen = sums_to_each(above.to(tl.int32) + (ties.to(tl.int32) << 16))  # two counts in one scan
    tied = (seen >> 16) & 0xFFFF
    return above | (ties & (tied <= left)), (seen & 0xFFFF) + tl.minimum(tied, left) - 1


@triton.jit
def best_and_place(key, count):
    """Which keys are the `count` best, and the place of each among them."""
    least, beyond = ends_of(key)
    least, reached, over = search(key, least, beyond, count, count)
    least, left = cut(key, least, reached, over, count)
    return taken_and_place(key, least, left)


@triton.jit
def hand_on(key, entry, count, key_ptr, entry_ptr, slots, PADDED: tl.constexpr):
    """The `count` best of a part as pairs in `slots` slots, PADDED at most, in order; slots that stay empty hold key 0."""
    taken, at = best_and_place(key, count)
    tl.store(key_ptr + at, key.to(tl.int32, bitcast=True), taken)
    tl.store(entry_ptr + at, entry, taken)
    slot = tl.arange(0, PADDED)
    tl.store(key_ptr + slot, 0, (slot >= tl.sum(taken.to(tl.int32))) & (slot < slots))


@triton.jit
def rank_line(
    score_ptr, len_ptr, count_ptr, first_ptr, newest_ptr, listed_ptr, score_line, listed_line, width,
    H: tl.constexpr, UNIT: tl.constexpr, ENDS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """listed [line, n]: the count[row] best of the entries of line = row * H + h (candidates_of), one program a line. width: of a line's memory, which does
    not wait for len."""
    after_previous(CHAINED)
    let_next(CHAINED)
    line = tl.program_id(0).to(tl.int64)
    entry = entries_of(BLOCK)
    count, entries, first, newest = candidates_of(len_ptr, count_ptr, first_ptr, newest_ptr, line, H, UNIT, ENDS)
    score = tl.load(score_ptr + line * score_line + entry, entry < width, 0.0)
    taken, at = best_and_place(keys_of(score, entry, entries, first, newest), count)
    tl.store(listed_ptr + line * listed_line + at, entry, taken)


@triton.jit
def rank_groups(
    score_ptr, best_ptr, len_ptr, count_ptr, group_ptr, listed_ptr, score_line, best_line, listed_line, width,
    H: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, MOST: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """listed [line, n]: the count[row] best of the entries of line = row * H + h, of which the last is always taken; one program a line.

    best [line, group]: the best score of GROUP entries, width groups of memory, GROUPS at most. MOST: groups whose entries are looked at; room for them in group [line, MOST].
    """
    after_previous(CHAINED)
    let_next(CHAINED)
    line = tl.program_id(0).to(tl.int64)
    count, entries, first, newest = candidates_of(len_ptr, count_ptr, None, None, line, H, UNIT, False)
    groups = (entries + GROUP - 1) // GROUP
    group = entries_of(GROUPS)
    best = tl.load(best_ptr + line * best_line + group, group < width, 0.0)
    key = keys_of(best, group, groups, first, newest)
    lowest, beyond = ends_of(key)
    lowest, reached, over = search(key, lowest, beyond, count, MOST)
    least, left = cut(key, lowest, reached, over, MOST)
    taken, at = taken_and_place(key, least, left)
    tl.store(group_ptr + line * MOST + at, group, taken)
    kept = tl.minimum(tl.where(reached < 0, groups, reached), MOST)
    tl.debug_barrier()
    n = entries_of(MOST * GROUP)
    entry = tl.load(group_ptr + line * MOST + n // GROUP, n // GROUP < kept, 0) * GROUP + n % GROUP
    here = (n // GROUP < kept) & (entry < entries)
    key = keys_of(tl.load(score_ptr + line * score_line + entry, here, 0.0), entry, entries, first, newest)
    key = tl.where(here, key, 0)
    # As many entries as groups reach `lowest`, where that many groups are.
    least = tl.where(groups >= count, lowest, 1).to(tl.uint32)
    beyond = tl.max(tl.where(key < ALWAYS, key, 0)) + 1
    least, reached, over = search(key, least, beyond, count, count)
    least, left = cut(key, least, reached, over, count)
    taken, at = taken_and_place(key, least, left)
    tl.store(listed_ptr + line * listed_line + at, entry, taken)


@triton.jit
def rank_parts(
    score_ptr, len_ptr, count_ptr, first_ptr, newest_ptr, key_ptr, entry_ptr, score_line, slots,
    H: tl.constexpr, UNIT: tl.constexpr, ENDS: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """key, entry [line, part, slot]: the count[row] best of BLOCK entries, or all of them. Program (line, part); the rest as rank_line."""
    after_previous(CHAINED)
    let_next(CHAINED)
    line, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry = part * BLOCK + entries_of(BLOCK)
    count, entries, first, newest = candidates_of(len_ptr, count_ptr, first_ptr, newest_ptr, line, H, UNIT, ENDS)
    key = line_keys(score_ptr + line * score_line, entry, entries, first, newest)
    at = (line * tl.num_programs(1) + part) * slots
    hand_on(key, entry, count, key_ptr + at, entry_ptr + at, slots, PADDED)


@triton.jit
def rank_survivors(
    key_ptr, entry_ptr, count_ptr, listed_ptr, slots, rows, listed_line, H: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, CHAINED: tl.constexpr = False
):
    """listed [line, n]: the count[row] best of the `slots` pairs of each line, where row = line // H % rows; WHOLE: they fit one block.

    Where they do not, every bit of the search reads them again, so that no length is too long.
    """
    after_previous(CHAINED)
    let_next(CHAINED)
    line = tl.program_id(0).to(tl.int64)
    count = tl.load(count_ptr + line // H % rows)
    key_ptr, entry_ptr, listed_ptr = key_ptr + line * slots, entry_ptr + line * slots, listed_ptr + line * listed_line
    n = entries_of(BLOCK)
    if WHOLE:
        key = tl.load(key_ptr + n, n < slots, 0).to(tl.uint32, bitcast=True)
        taken, at = best_and_place(key, count)
        tl.store(listed_ptr + at, tl.load(entry_ptr + n, taken, 0), taken)
    else:
        least, reached, bit = tl.full([], 0, tl.uint32), -1, tl.full([], 1 << 31, tl.uint32)
        while (bit != 0) & (reached != count):
            tried = least | bit
            reaching = n * 0
            for start in range(0, slots, BLOCK):
                key = tl.load(key_ptr + start + n, start + n < slots, 0).to(tl.uint32, bitcast=True)
                reaching += (key >= tried).to(tl.int32)
            found = tl.sum(reaching)
            least = tl.where(found >= count, tried, least)
            reached = tl.where(found >= count, found, reached)
            bit = bit >> 1
        least = tl.maximum(least, tl.full([], 1, tl.uint32))
        above = n * 0
        for start in range(0, slots, BLOCK):
            key = tl.load(key_ptr + start + n, start + n < slots, 0).to(tl.uint32, bitcast=True)
            above += (key > least).to(tl.int32)
        left, done = count - tl.sum(above), 0
        for start in range(0, slots, BLOCK):
            key = tl.load(key_ptr + start + n, start + n < slots, 0).to(tl.uint32, bitcast=True)
            taken, at = taken_and_place(key, least, left)
            tl.store(listed_ptr + done + at, tl.load(entry_ptr + start + n, taken, 0), taken)
            done += tl.sum(taken.to(tl.int32))
            left -= tl.minimum(left, tl.sum((key == least).to(tl.int32)))
