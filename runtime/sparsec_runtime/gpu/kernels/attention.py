"""Attention of one query a row over paged K and V, split into chunks of tokens and merged by log-sum-exp.

A work item is one chunk of tokens of one (row, head). Items are numbered by the lengths, whole chunks first and the short rests last, so mixed and ragged
lengths spread evenly over a persistent grid; a row's chunks depend on its own length alone. The query heads of a KV head are the rows of one tile (padded to GP).
Logits are in base 2: scale2 = scale * log2(e).
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next
from .write import unit_of


@triton.jit
def lengths_of(len_ptr, ENTRIES: tl.constexpr, EP: tl.constexpr):
    """Lengths [EP] of all entries: rows, or (row, head) where heads hold different counts."""
    e = tl.arange(0, EP)
    return e, tl.load(len_ptr + e, e < ENTRIES, 0)


@triton.jit
def chunk_sizes(lengths, CHUNK: tl.constexpr):
    """By length alone: tokens of a chunk (CHUNK of long rows), number of whole chunks, and whether a shorter rest follows them."""
    size = tl.where(lengths > 16 * CHUNK, CHUNK, tl.where(lengths >= 2 * CHUNK, CHUNK // 2, CHUNK // 8))
    return size, lengths // size, (lengths % size > 0).to(tl.int32)


@triton.jit
def product(a, b, EXACT: tl.constexpr):
    """a [m, d] times b [n, d], transposed, fp32; EXACT: fp32 inputs are not rounded to tf32."""
    if EXACT:
        return tl.dot(a, tl.trans(b), input_precision="ieee")
    else:
        return tl.dot(a, tl.trans(b))


@triton.jit
def attend_tile(
    q, top, total, out, k_ptr, v_ptr, table_ptr, pages_ptr, logits_at, token, last, h, scale2, g,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, PER_HEAD: tl.constexpr, PICKED: tl.constexpr,
    LOGITS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One step of the running softmax of q [GP, DP] over the rows `token` below `last`: its new maximum [GP], sum [GP] and output [GP, DP]."""
    here = token < last
    c = tl.arange(0, DP)
    index = token // PAGE
    if PICKED:
        index = tl.load(pages_ptr + index, here, 0)
    page = tl.load(table_ptr + index, here, 0)
    line = (unit_of(page, h, H, PER_HEAD) * PAGE + token % PAGE) * D
    inside = here[:, None] & (c < D)[None, :]
    x = product(q, tl.load(k_ptr + line[:, None] + c[None, :], inside, 0.0), EXACT) * scale2
    x = tl.where(here[None, :], x, -float("inf"))
    if LOGITS:
        tl.store(logits_at[:, None] + token[None, :], x, (g < G)[:, None] & here[None, :])
    higher = tl.maximum(top, tl.max(x, 1))
    shrink = tl.exp2(top - higher)
    p = tl.exp2(x - higher[:, None])
    v = tl.load(v_ptr + line[:, None] + c[None, :], inside, 0.0)
    if EXACT:
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    else:
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v)
    return higher, total * shrink + tl.sum(p, 1), out


@triton.jit
def attend_chunks(
    q_ptr, q_first_ptr, k_ptr, v_ptr, table_ptr, len_ptr, first_ptr, pages_ptr, part_ptr, lse_ptr, logits_ptr,
    scale2, table_row, table_head, pages_row, pages_head, logits_row,
    ENTRIES: tl.constexpr, EP: tl.constexpr, H: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    PAGE: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, RAGGED: tl.constexpr, PER_HEAD: tl.constexpr, PICKED: tl.constexpr,
    LOGITS: tl.constexpr, FIRSTS: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """part [item, G, D] fp32: the chunk's normalised output; lse [item, G] base 2; logits [row, H * G, token] if LOGITS.

    PICKED: len counts the tokens of the pages listed in pages [row, head, index] (index of a page in the row's table).
    FIRSTS: the first[row] rows are asked by q_first, the others by q (write.py says why).
    """
    after_previous(CHAINED)
    e, lengths = lengths_of(len_ptr, ENTRIES, EP)
    sizes, whole, rests = chunk_sizes(lengths, CHUNK)
    ends_of_whole, ends_of_rests = tl.cumsum(whole, 0), tl.cumsum(rests, 0)
    all_whole = tl.sum(whole, 0)
    heads: tl.constexpr = 1 if RAGGED else H
    items = (all_whole + tl.sum(rests, 0)) * heads
    g, c, t = tl.arange(0, GP), tl.arange(0, DP), tl.arange(0, TILE)
    real = (g < G)[:, None] & (c < D)[None, :]
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        place = item // heads
        is_rest = place >= all_whole
        entry = tl.sum(tl.where(is_rest, ends_of_rests <= place - all_whole, ends_of_whole <= place).to(tl.int32), 0)
        mine = e == entry
        chunk = tl.where(is_rest, tl.sum(tl.where(mine, whole, 0), 0), place - tl.sum(tl.where(e < entry, whole, 0), 0))
        length, size = tl.sum(tl.where(mine, lengths, 0), 0), tl.sum(tl.where(mine, sizes, 0), 0)
        row = entry // H if RAGGED else entry
        h = entry % H if RAGGED else item % heads
        head = row * H * G + h * G + g
        begin, last = chunk * size, tl.minimum(chunk * size + size, length)
        table_at, pages_at = table_ptr + row * table_row + h * table_head, pages_ptr + row * pages_row + h * pages_head
        logits_at = logits_ptr + head.to(tl.int64) * logits_row
        top = tl.full([GP], -float("inf"), tl.float32)
        total = tl.zeros([GP], tl.float32)
        out = tl.zeros([GP, DP], tl.float32)
        if FIRSTS:
            first = tl.minimum(tl.load(first_ptr + row), last)
            q = tl.load(q_first_ptr + head[:, None] * D + c[None, :], real, 0.0)
            for start in range(begin, first, TILE):
                top, total, out = attend_tile(
                    q, top, total, out, k_ptr, v_ptr, table_at, pages_at, logits_at, start + t, first, h, scale2, g,
                    H, G, D, DP, PAGE, PER_HEAD, PICKED, LOGITS, EXACT,
                )  # fmt: skip
            begin = tl.maximum(begin, first)
        q = tl.load(q_ptr + head[:, None] * D + c[None, :], real, 0.0)
        for start in tl.range(begin, last, TILE, num_stages=STAGES):
            top, total, out = attend_tile(
                q, top, total, out, k_ptr, v_ptr, table_at, pages_at, logits_at, start + t, last, h, scale2, g,
                H, G, D, DP, PAGE, PER_HEAD, PICKED, LOGITS, EXACT,
            )  # fmt: skip
        at = item * G + g
        tl.store(part_ptr + at[:, None] * D + c[None, :], out / total[:, None], real)
        tl.store(lse_ptr + at, top + tl.log2(total), g < G)
    let_next(CHAINED)


@triton.jit
def merge_chunks(
    part_ptr, lse_ptr, len_ptr, out_ptr, row_lse_ptr,
    ENTRIES: tl.constexpr, EP: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, RAGGED: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """Program (row, query head): out [row, H * G, D] and row_lse [row, H * G] from the parts; zeros where a row holds nothing."""
    after_previous(CHAINED)
    row, head = tl.program_id(0), tl.program_id(1)
    h, g = head // G, head % G
    e, lengths = lengths_of(len_ptr, ENTRIES, EP)
    _, whole, rests = chunk_sizes(lengths, CHUNK)
    entry = row * H + h if RAGGED else row
    heads: tl.constexpr = 1 if RAGGED else H
    before, mine = tl.sum(tl.where(e < entry, whole, 0), 0), tl.sum(tl.where(e == entry, whole, 0), 0)
    rest = tl.sum(whole, 0) + tl.sum(tl.where(e < entry, rests, 0), 0)
    count = mine + tl.sum(tl.where(e == entry, rests, 0), 0)
    c, n = tl.arange(0, DP), tl.arange(0, TILE)
    top, total = -float("inf"), 0.0
    out = tl.zeros([DP], tl.float32)
    for start in range(0, count, TILE):
        here = start + n < count
        place = tl.where(start + n < mine, before + start + n, rest)
        at = (place * heads + (0 if RAGGED else h)) * G + g
        lse = tl.load(lse_ptr + at, here, -float("inf"))
        part = tl.load(part_ptr + at[:, None] * D + c[None, :], here[:, None] & (c < D)[None, :], 0.0)
        higher = tl.maximum(top, tl.max(lse, 0))
        shrink = tl.exp2(top - higher)
        weight = tl.exp2(lse - higher)
        out = out * shrink + tl.sum(part * weight[:, None], 0)
        total = total * shrink + tl.sum(weight, 0)
        top = higher
    let_next(CHAINED)
    total = tl.where(count > 0, total, 1.0)
    tl.store(out_ptr + (row * H * G + head) * D + c, (out / total).to(out_ptr.dtype.element_ty), c < D)
    tl.store(row_lse_ptr + row * H * G + head, top + tl.log2(total))
