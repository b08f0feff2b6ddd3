"""Exact ranking: the best entries of a row, ties to the lower index."""

import triton
import triton.language as tl

from .chain import after_previous, let_next

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
