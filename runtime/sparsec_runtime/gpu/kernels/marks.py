"""Ids that are marked by bits: marks [row, words] int32, where bit b of word n stands for id n * 32 + b. They are read WORDS words at a time."""

import triton
import triton.language as tl


@triton.jit
def ones(word):
    """How many bits of uint32 words are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def lowest_bit(word):
    """The place of the lowest set bit, from the exponent that it has as a number; negative where no bit is set."""
    lowest = word & (0 - word)
    return (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def marks_at(marks_ptr, row, words, first, WORDS: tl.constexpr):
    """The numbers of WORDS words of a row's marks, the words, and how many ids each marks."""
    n = first + tl.arange(0, WORDS)
    word = tl.load(marks_ptr + row * words + n, n < words, 0).to(tl.uint32)
    return n, word, ones(word)


@triton.jit
def list_marked(marks_ptr, list_ptr, row, words, WORDS: tl.constexpr, LIST: tl.constexpr):
    """How many ids are marked; list [row, LIST]: the first of them, which the program may then read."""
    count = tl.zeros([], tl.int32)
    for first in range(0, words, WORDS):
        n, word, amount = marks_at(marks_ptr, row, words, first, WORDS)
        place = count + tl.cumsum(amount, 0) - amount
        count += tl.sum(amount, 0)
        while tl.max((word != 0).to(tl.int32), 0) > 0:
            tl.store(list_ptr + row * LIST + place, n * 32 + lowest_bit(word), (word != 0) & (place < LIST))
            word = word & (word - 1)
            place += 1
    tl.debug_barrier()
    return count


@triton.jit
def marked(marks_ptr, row, words, number, WORDS: tl.constexpr):
    """The id of a row's marked one by its number, from 1."""
    count, found = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    for first in range(0, words, WORDS):
        n, word, amount = marks_at(marks_ptr, row, words, first, WORDS)
        more = number - (count + tl.cumsum(amount, 0) - amount)  # the number within the word
        count += tl.sum(amount, 0)
        here = (more >= 1) & (more <= amount)
        for lower in range(1, 32):
            word = tl.where(lower < more, word & (word - 1), word)
        found = tl.maximum(found, tl.max(tl.where(here, n * 32 + lowest_bit(word), 0), 0))
    return found
