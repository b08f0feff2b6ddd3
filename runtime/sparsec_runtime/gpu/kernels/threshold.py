"""Sampling inside a graph, continued (narrow.py): the last id that top-k keeps, then that top-p keeps of these, one program a row; what is kept weighs.

Candidates that fit the list are read once and searched in registers. Of more that are equal, their marks tell the last one. Where more of them differ,
which takes logits of more than one scale or both top-p and a top-k as long as the list, the vocabulary is read for every bit, and that is slow.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next
from .marks import list_marked, marked
from .narrow import interval, value_of
from .sample import (  # fmt: skip
    _MODE, _LEAST, _BY_K, _BY_P, _SCALE, _DRAWS, _TOTAL, _COUNT, _THRESHOLD, _CUT, LEAST_KEY, NO_KEY, NO_ID,
    penalised, halvings, weight_of, weight_in_row, share_of, key_of, weights_down_to,
)


@triton.jit
def reach(
    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end, low, cut, key_from, id_end,
    WHAT: tl.constexpr, TILE: tl.constexpr, PENALTIES: tl.constexpr,
):  # fmt: skip
    """Of the candidates, keys from `lowest` up to but not `end`, that (low, cut) keep: "count" or "weight" of those with keys from `key_from` up;
    "ties": how many have that key and an id below `id_end`; "least", "largest": their keys."""
    top, scale = tl.load(top_ptr + row), tl.load(scales_ptr + _SCALE * rows + row)
    least = tl.load(asked_ptr + _LEAST * rows + row)
    result = tl.zeros([], tl.int64)
    if WHAT == "least":
        result += NO_KEY
    if WHAT == "largest":
        result -= NO_KEY
    for first in range(0, vocab, TILE):
        ids = first + tl.arange(0, TILE)
        x = penalised(logits_ptr, row, ids, ids < vocab, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
        key = key_of(x).to(tl.int64)
        kept = (key > low) | ((key == low) & (ids <= cut))
        kept = kept & (ids < vocab) & (key >= lowest) & (key < end)
        if WHAT == "count":
            result += tl.sum((kept & (key >= key_from)).to(tl.int64), 0)
        elif WHAT == "weight":
            weight = weight_of(halvings(x, top, scale), least)
            result += tl.sum(tl.where(kept & (key >= key_from), weight, 0), 0)
        elif WHAT == "ties":
            result += tl.sum((kept & (key == key_from) & (ids < id_end)).to(tl.int64), 0)
        elif WHAT == "least":
            result = tl.minimum(result, tl.min(tl.where(kept, key, NO_KEY), 0))
        else:
            result = tl.maximum(result, tl.max(tl.where(kept, key, -NO_KEY), 0))
    return result


@triton.jit
def span_of_kept(
    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end, low, cut, TILE: tl.constexpr, PENALTIES: tl.constexpr
):
    """The least and the largest key of the candidates that (low, cut) keep; the least is larger where there is none."""
    least = reach(
        logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end, low, cut, low, NO_ID, "least", TILE, PENALTIES
    )  # fmt: skip
    largest = reach(
        logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end, low, cut, low, NO_ID, "largest", TILE, PENALTIES
    )  # fmt: skip
    return least, largest


@triton.jit
def bits_of(number):
    """How many binary digits an int64 number below 2^32 has, 0 if it is negative."""
    return tl.sum(((tl.maximum(number, 0) >> tl.arange(0, 32).to(tl.int64)) > 0).to(tl.int32), 0)


@triton.jit
def tightened(low, cut, key, end):
    """The tighter of (low, cut) and (key, end)."""
    tighter = tl.where(key > low, end, tl.where(key == low, tl.minimum(cut, end), cut))
    return tl.maximum(low, key), tighter


@triton.jit
def last_kept(
    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, need,
    WHAT: tl.constexpr, TILE: tl.constexpr, ID_BITS: tl.constexpr, PENALTIES: tl.constexpr,
):  # fmt: skip
    """(low, cut) made so much tighter that what they keep just reaches `need`: the key bit by bit, then the id among equal ones."""
    last, largest = span_of_kept(
        logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, TILE, PENALTIES
    )  # fmt: skip
    last = tl.where(last > largest, low, last)  # there is no candidate: nothing becomes tighter
    bits = bits_of(largest - last)
    for step in range(bits):
        raised = last + (tl.full([], 1, tl.int64) << (bits - 1 - step).to(tl.int64))
        reached = reach(
            logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, raised, NO_ID,
            WHAT, TILE, PENALTIES,
        )  # fmt: skip
        last = tl.where(reached >= need, raised, last)
    above = reach(
        logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, last + 1, NO_ID,
        WHAT, TILE, PENALTIES,
    )  # fmt: skip
    reached = reach(
        logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, last, NO_ID,
        WHAT, TILE, PENALTIES,
    )  # fmt: skip
    tied = reach(
        logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, last, NO_ID,
        "ties", TILE, PENALTIES,
    )  # fmt: skip
    each = tl.maximum((reached - above) // tl.maximum(tied, 1), 1)  # equal logits weigh the same
    more = (need - above + each - 1) // each
    end = tl.zeros([], tl.int32) + NO_ID
    if more < tied:
        end = tl.zeros([], tl.int32)  # becomes the largest number below which fewer than `more` of them lie: the id of the last one
        for step in range(ID_BITS):
            raised_id = end + (1 << (ID_BITS - 1 - step))
            lower = reach(
                logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, last, raised_id,
                "ties", TILE, PENALTIES,
            )  # fmt: skip
            end = tl.where(lower < more, raised_id, end)
    return tightened(low, cut, last, end)


@triton.jit
def last_of(key, ids, amount, kept, low, cut, need, ID_BITS: tl.constexpr):
    """last_kept of candidates that lie in registers. amount: what each adds to the sum that reaches `need`, equal for equal keys."""
    kept = kept & ((key > low) | ((key == low) & (ids <= cut)))
    amount = tl.where(kept, amount, 0)
    least, largest = tl.min(tl.where(kept, key, NO_KEY), 0), tl.max(tl.where(kept, key, -NO_KEY), 0)
    least = tl.where(least > largest, low, least)
    bits = bits_of(largest - least)
    above_least = (key - least).to(tl.uint32)  # 32 bits hold it where an id is kept
    last = tl.zeros([], tl.int64)
    for step in range(bits):
        raised = last + (tl.full([], 1, tl.int64) << (bits - 1 - step).to(tl.int64))
        last = tl.where(tl.sum(tl.where(above_least >= raised.to(tl.uint32), amount, 0), 0) >= need, raised, last)
    above = tl.sum(tl.where(above_least > last.to(tl.uint32), amount, 0), 0)
    ties = kept & (above_least == last.to(tl.uint32))
    last += least
    tied = tl.sum(ties.to(tl.int32), 0)
    each = tl.maximum(tl.sum(tl.where(ties, amount, 0), 0) // tl.maximum(tied, 1), 1)
    more = (need - above + each - 1) // each
    end = tl.zeros([], tl.int32) + NO_ID
    if more < tied:
        tied_ids = tl.where(ties, ids, NO_ID)
        end = tl.zeros([], tl.int32)
        for step in range(ID_BITS):
            raised_id = end + (1 << (ID_BITS - 1 - step))
            end = tl.where(tl.sum((tied_ids < raised_id).to(tl.int32), 0) < more, raised_id, end)
    return tightened(low, cut, last, end)


@triton.jit
def threshold_of_listed(
    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, list_ptr, parts_ptr, row, rows, vocab, parts, listed, need, low, cut,
    TILE: tl.constexpr, PART: tl.constexpr, LIST: tl.constexpr, ID_BITS: tl.constexpr, PENALTIES: tl.constexpr,
):  # fmt: skip
    """(low, cut) of a row whose candidates are at most TILE: each is read once. Adds the weights kept of them to parts."""
    mode = tl.load(asked_ptr + _MODE * rows + row)
    n = tl.arange(0, TILE)
    here = n < listed
    ids = tl.load(list_ptr + row * LIST + n, here, 0)
    x = penalised(logits_ptr, row, ids, here, rows, vocab, scales_ptr, prompt_ptr, count_ptr, PENALTIES)
    weight = tl.where(here, weight_in_row(x, asked_ptr, scales_ptr, top_ptr, row, rows), 0)
    key = key_of(x).to(tl.int64)
    if (mode & _BY_K) > 0:
        low, cut = last_of(key, ids, here.to(tl.int32), here, low, cut, need, ID_BITS)
        total = tl.sum(tl.where((key > low) | ((key == low) & (ids <= cut)), weight, 0), 0)
        need = share_of(total, tl.load(shares_ptr + row))
    if (mode & _BY_P) > 0:
        low, cut = last_of(key, ids, weight, here, low, cut, need, ID_BITS)
    kept = here & ((key > low) | ((key == low) & (ids <= cut)))
    tl.atomic_add(parts_ptr + row * parts + ids // PART, weight, kept, sem="relaxed")
    return low, cut


@triton.jit
def threshold_of_equal(
    asked_ptr, shares_ptr, scales_ptr, top_ptr, marks_ptr, row, rows, words, count, key, need, WORDS: tl.constexpr,
):  # fmt: skip
    """(low, cut) of a row whose `count` candidates all have one key."""
    mode = tl.load(asked_ptr + _MODE * rows + row)
    each = weight_in_row(value_of(key), asked_ptr, scales_ptr, top_ptr, row, rows)
    kept = count.to(tl.int64)
    if (mode & _BY_K) > 0:
        kept = tl.minimum(need, kept)
        need = share_of(kept * each, tl.load(shares_ptr + row))
    if (mode & _BY_P) > 0:
        divisor = tl.maximum(each, 1)
        kept = tl.minimum(kept, tl.maximum((need + divisor - 1) // divisor, 1))
    return key, marked(marks_ptr, row, words, kept.to(tl.int32), WORDS)


@triton.jit
def threshold_of_many(
    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, need, low, cut,
    TILE: tl.constexpr, ID_BITS: tl.constexpr, PENALTIES: tl.constexpr,
):  # fmt: skip
    """The same where the list is too short for the candidates: they are found in the vocabulary, TILE ids at a time."""
    mode = tl.load(asked_ptr + _MODE * rows + row)
    if (mode & _BY_K) > 0:
        low, cut = last_kept(
            logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, need,
            "count", TILE, ID_BITS, PENALTIES,
        )  # fmt: skip
    if (mode & _BY_P) > 0:
        if (mode & _BY_K) > 0:
            total = reach(
                logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, low, NO_ID,
                "weight", TILE, PENALTIES,
            )  # fmt: skip
            need = share_of(total, tl.load(shares_ptr + row))
        low, cut = last_kept(
            logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, need,
            "weight", TILE, ID_BITS, PENALTIES,
        )  # fmt: skip
    return low, cut


@triton.jit
def find_threshold(
    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, found_ptr, top_ptr, sums_ptr, marks_ptr, list_ptr, parts_ptr,
    rows, vocab, parts, words,
    TILE: tl.constexpr, PART: tl.constexpr, LIST: tl.constexpr, WORDS: tl.constexpr, ID_BITS: tl.constexpr, PARTS: tl.constexpr,
    PENALTIES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """THRESHOLD and CUT: the last id that top-k keeps, then that top-p keeps of these; COUNT: candidates; parts [row, part] becomes the weight of all that
    is kept. marks [row, words] int32. TILE is at most LIST; few candidates are searched in TILE. PARTS: a power of 2, at least `parts`."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    mode = tl.load(asked_ptr + _MODE * rows + row)
    if (tl.load(found_ptr + _DRAWS * rows + row) > 0) & ((mode & (_BY_K | _BY_P)) > 0):
        low, cut = tl.zeros([], tl.int64) + LEAST_KEY, tl.zeros([], tl.int32) + NO_ID
        lowest, end_key, need = interval(asked_ptr, shares_ptr, scales_ptr, found_ptr, top_ptr, sums_ptr, row, rows, vocab)
        if (mode & _BY_K) == 0:
            n = tl.arange(0, PARTS)
            base = tl.sum(tl.load(parts_ptr + row * parts + n, n < parts, 0), 0)
            need = share_of(tl.load(found_ptr + _TOTAL * rows + row), tl.load(shares_ptr + row)) - base
        count = list_marked(marks_ptr, list_ptr, row, words, WORDS, LIST)
        if count <= TILE:
            low, cut = threshold_of_listed(
                logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, list_ptr, parts_ptr, row, rows, vocab, parts,
                count, need, low, cut, TILE, PART, LIST, ID_BITS, PENALTIES,
            )  # fmt: skip
        elif count <= LIST:
            low, cut = threshold_of_listed(
                logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, list_ptr, parts_ptr, row, rows, vocab, parts,
                count, need, low, cut, LIST, PART, LIST, ID_BITS, PENALTIES,
            )  # fmt: skip
        else:
            least, largest = span_of_kept(
                logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, low, cut, LIST, PENALTIES
            )  # fmt: skip
            if least == largest:
                low, cut = threshold_of_equal(asked_ptr, shares_ptr, scales_ptr, top_ptr, marks_ptr, row, rows, words, count, least, need, WORDS)
            else:
                low, cut = threshold_of_many(
                    logits_ptr, asked_ptr, shares_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, rows, vocab, lowest, end_key, need, low, cut,
                    LIST, ID_BITS, PENALTIES,
                )  # fmt: skip
            for part in range(parts):
                weight = weights_down_to(
                    logits_ptr, asked_ptr, scales_ptr, prompt_ptr, count_ptr, top_ptr, row, part, rows, vocab, low, cut, PART, PENALTIES
                )  # fmt: skip
                tl.store(parts_ptr + row * parts + part, tl.sum(weight, 0))
        tl.store(found_ptr + _COUNT * rows + row, count.to(tl.int64))
        tl.store(found_ptr + _THRESHOLD * rows + row, low)
        tl.store(found_ptr + _CUT * rows + row, cut.to(tl.int64))
