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
def attend_chunks(
    q_ptr, k_ptr, v_ptr, table_ptr, len_ptr, pages_ptr, part_ptr, lse_ptr, logits_ptr, cos_ptr, sin_ptr,
    scale2, table_row, table_head, pages_row, pages_head, logits_row,
    ENTRIES: tl.constexpr, EP: tl.constexpr, H: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    PAGE: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, RAGGED: tl.constexpr, PER_HEAD: tl.constexpr, PICKED: tl.constexpr,
    LOGITS: tl.constexpr, RANKED: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """part [item, G, D] fp32: the chunk's normalised output; lse [item, G] base 2; logits [row, H * G, token] if LOGITS.

    PICKED: len counts the tokens of the pages listed in pages [row, head, index] (index of a page in the row's table).
    RANKED: q and K are as before RoPE, and turn by their rank among the row's rows; cos, sin [rank, D / 2]. A tile's keys turn by their place in the
    tile and q by what is left, so that the keys' angles are loaded once.
    """
    after_previous(CHAINED)
    e, lengths = lengths_of(len_ptr, ENTRIES, EP)
    sizes, whole, rests = chunk_sizes(lengths, CHUNK)
    ends_of_whole, ends_of_rests = tl.cumsum(whole, 0), tl.cumsum(rests, 0)
    all_whole = tl.sum(whole, 0)
    heads: tl.constexpr = 1 if RAGGED else H
    items = (all_whole + tl.sum(rests, 0)) * heads
    g, c, t = tl.arange(0, GP), tl.arange(0, DP), tl.arange(0, TILE)
    half: tl.constexpr = DP // 2
    pair = tl.arange(0, half)
    if RANKED:
        k_cos = tl.load(cos_ptr + t[:, None] * half + pair[None, :])
        k_sin = tl.load(sin_ptr + t[:, None] * half + pair[None, :])
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        place = item // heads
        is_rest = place >= all_whole
        entry = tl.sum(tl.where(is_rest, ends_of_rests <= place - all_whole, ends_of_whole <= place).to(tl.int32), 0)
        mine = e == entry
        chunk = tl.where(is_rest, tl.sum(tl.where(mine, whole, 0), 0), place - tl.sum(tl.where(e < entry, whole, 0), 0))
        length, size = tl.sum(tl.where(mine, lengths, 0), 0), tl.sum(tl.where(mine, sizes, 0), 0)
        row = entry // H if RAGGED else entry
        h = entry % H if RAGGED else item % heads
        q_at = q_ptr + (row * H * G + h * G + g)[:, None] * D
        if RANKED:
            q_low = tl.load(q_at + pair[None, :], (g < G)[:, None], 0.0).to(tl.float32)
            q_high = tl.load(q_at + half + pair[None, :], (g < G)[:, None], 0.0).to(tl.float32)
        else:
            q = tl.load(q_at + c[None, :], (g < G)[:, None] & (c < D)[None, :], 0.0)
        first, last = chunk * size, tl.minimum(chunk * size + size, length)
        top = tl.full([GP], -float("inf"), tl.float32)
        total = tl.zeros([GP], tl.float32)
        out = tl.zeros([GP, DP], tl.float32)
        for start in tl.range(first, last, TILE, num_stages=STAGES):
            token = start + t
            here = token < last
            index = token // PAGE
            if PICKED:
                index = tl.load(pages_ptr + row * pages_row + h * pages_head + index, here, 0)
            page = tl.load(table_ptr + row * table_row + h * table_head + index, here, 0)
            line = (unit_of(page, h, H, PER_HEAD) * PAGE + token % PAGE) * D
            inside = here[:, None] & (c < D)[None, :]
            if RANKED:
                behind = length - 1 - start
                cos = tl.load(cos_ptr + behind * half + pair)[None, :]
                sin = tl.load(sin_ptr + behind * half + pair)[None, :]
                low = tl.load(k_ptr + line[:, None] + pair[None, :], here[:, None], 0.0)
                kind = low.dtype
                low = low.to(tl.float32)
                high = tl.load(k_ptr + line[:, None] + half + pair[None, :], here[:, None], 0.0).to(tl.float32)
                x = product((q_low * cos - q_high * sin).to(kind), (low * k_cos - high * k_sin).to(kind), EXACT)
                x = (x + product((q_high * cos + q_low * sin).to(kind), (high * k_cos + low * k_sin).to(kind), EXACT)) * scale2
            else:
                x = product(q, tl.load(k_ptr + line[:, None] + c[None, :], inside, 0.0), EXACT) * scale2
            x = tl.where(here[None, :], x, -float("inf"))
            if LOGITS:
                at = logits_ptr + (row * H * G + h * G + g)[:, None].to(tl.int64) * logits_row + token[None, :]
                tl.store(at, x, (g < G)[:, None] & here[None, :])
            higher = tl.maximum(top, tl.max(x, 1))
            shrink = tl.exp2(top - higher)
            p = tl.exp2(x - higher[:, None])
            v = tl.load(v_ptr + line[:, None] + c[None, :], inside, 0.0)
            if EXACT:
                out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            else:
                out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            total = total * shrink + tl.sum(p, 1)
            top = higher
        at = item * G + g
        tl.store(part_ptr + at[:, None] * D + c[None, :], out / total[:, None], (g < G)[:, None] & (c < D)[None, :])
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
