"""Choosing pages: a bound of every page's best logit from its envelope of keys, then the exact best pages, ties to the lower page."""

import triton
import triton.language as tl

from .chain import after_previous, let_next
from .attention import lengths_of
from .write import unit_of

ALWAYS = tl.constexpr(1.0e30)  # the worth of a page that is always read


@triton.jit
def bound_pages(
    q_ptr, low_ptr, high_ptr, table_ptr, len_ptr, first_ptr, newest_ptr, worth_ptr, table_row, table_head, worth_row,
    ROWS: tl.constexpr, EP: tl.constexpr, H: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, PER_HEAD: tl.constexpr, OVER_G: tl.constexpr, EXACT: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """worth [row, head, page] = over g of sum[c](max(q * low, q * high)), the positive part of q meeting high and the negative low."""
    after_previous(CHAINED)
    let_next(CHAINED)
    e, lengths = lengths_of(len_ptr, ROWS, EP)
    tiles = (lengths + PAGE * TILE - 1) // (PAGE * TILE)
    ends = tl.cumsum(tiles, 0)
    g, c, n = tl.arange(0, GP), tl.arange(0, DP), tl.arange(0, TILE)
    for item in range(tl.program_id(0), tl.sum(tiles, 0) * H, tl.num_programs(0)):
        place, h = item // H, item % H
        row = tl.sum((ends <= place).to(tl.int32), 0)
        p = (place - tl.sum(tl.where(e < row, tiles, 0), 0)) * TILE + n
        pages = (tl.load(len_ptr + row) + PAGE - 1) // PAGE
        here = p < pages
        q = tl.load(q_ptr + (row * H * G + h * G + g)[:, None] * D + c[None, :], (g < G)[:, None] & (c < D)[None, :], 0.0)
        page = tl.load(table_ptr + row * table_row + h * table_head + p, here, 0)
        line = unit_of(page, h, H, PER_HEAD) * D
        inside = here[:, None] & (c < D)[None, :]
        low = tl.load(low_ptr + line[:, None] + c[None, :], inside, 0.0)
        high = tl.load(high_ptr + line[:, None] + c[None, :], inside, 0.0)
        zero = tl.zeros([GP, DP], q.dtype)
        if EXACT:
            reach = tl.dot(tl.where(q > 0, q, zero), tl.trans(high), input_precision="ieee")
            reach += tl.dot(tl.where(q < 0, q, zero), tl.trans(low), input_precision="ieee")
        else:
            reach = tl.dot(tl.where(q > 0, q, zero), tl.trans(high))
            reach += tl.dot(tl.where(q < 0, q, zero), tl.trans(low))
        if OVER_G == "max":
            worth = tl.max(tl.where((g < G)[:, None], reach, -float("inf")), 0)
        else:
            worth = tl.sum(tl.where((g < G)[:, None], reach, 0.0), 0)
            if OVER_G == "mean":
                worth = worth / G
        always = (p < tl.load(first_ptr + row)) | (p >= pages - tl.load(newest_ptr + row)) | (p == pages - 1)
        tl.store(worth_ptr + (row * H + h) * worth_row + p, tl.where(always, ALWAYS, worth), here)


@triton.jit
def ordered(x):
    """fp32 as an unsigned 32 bit key of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def least_of_best(key, candidate, count):
    """The largest 32 bit key that `count` candidates reach, eight bits at a time: a histogram of the next digit of those that share the digits so far."""
    digits = tl.arange(0, 256)
    least = tl.zeros([], tl.uint32)
    missing = count
    for step in tl.static_range(4):
        same = candidate
        if step > 0:
            same = candidate & ((key >> (32 - 8 * step)) == least)
        found = tl.histogram(((key >> (24 - 8 * step)) & 255).to(tl.int32), 256, mask=same)
        reaching = tl.sum(found, 0) - tl.cumsum(found, 0) + found  # how many have this digit or a larger one
        digit = tl.maximum(tl.sum((reaching >= missing).to(tl.int32), 0) - 1, 0)
        missing -= tl.sum(tl.where(digits > digit, found, 0), 0)
        least = (least << 8) | digit.to(tl.uint32)
    return least


@triton.jit
def best_and_place(key, candidate, count):
    """Which candidates are the `count` best, ties to the lower index, and the place of each among them."""
    least = least_of_best(key, candidate, count)
    above = candidate & (key > least)
    ties = candidate & (key == least)
    left = count - tl.sum(above.to(tl.int32), 0)
    seen = tl.cumsum(above.to(tl.int32) + (ties.to(tl.int32) << 16), 0)  # both in one scan: there are at most 2^15
    tied = seen >> 16
    return above | (ties & (tied <= left)), (seen & 0xFFFF) + tl.minimum(tied, left) - 1


@triton.jit
def best_pages(worth_ptr, len_ptr, count_ptr, pages_ptr, worth_row, pages_row, H: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False):
    """pages [row, head, n]: the count[row] pages of the largest worth in ascending order; program (row, head).

    Exact: of the pages that tie for the last place the lowest are taken.
    """
    after_previous(CHAINED)
    let_next(CHAINED)
    row, h = tl.program_id(0), tl.program_id(1)
    p = tl.arange(0, BLOCK)
    pages = (tl.load(len_ptr + row) + PAGE - 1) // PAGE
    count = tl.load(count_ptr + row)
    here = p < pages
    key = ordered(tl.load(worth_ptr + (row * H + h) * worth_row + p, here, 0.0))
    taken, at = best_and_place(key, here, count)
    tl.store(pages_ptr + (row * H + h) * pages_row + at, p, taken)
