"""Attention of the queries of a prompt chunk over gathered, contiguous K and V, and what it gives each row in all.

q, out [query, H * G, D] are contiguous; k, v [kv_head, token, D] with any distance between heads; lse [H * G, query] fp32 is the natural logarithm of the
sum of exp(logits). D channels are padded to DP. The chunk's own rows are the newest: query i of `queries` sees the rows up to last - queries + i.
"""

import triton
import triton.language as tl

from .tools import product

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def rows_at(base, row, last, c, D: tl.constexpr, DP: tl.constexpr, MASKED: tl.constexpr):
    """Rows [n, DP] of [token, D]; MASKED: zeros from `last` on."""
    at = base + row[:, None] * D + c[None, :]
    if MASKED:
        return tl.load(at, (row < last)[:, None] & (c < D)[None, :], 0.0)
    elif D == DP:
        return tl.load(at)
    else:
        return tl.load(at, (c < D)[None, :], 0.0)


@triton.jit
def attend_tile(
    q, top, total, out, k_at, v_at, row, last, newest, c, scale2,
    D: tl.constexpr, DP: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One step of the running softmax: maximum [BM] in base 2, sum [BM] and output [BM, DP]. newest [BM]: the newest row that each query sees."""
    k = rows_at(k_at, row, last, c, D, DP, MASKED)
    x = product(q, tl.trans(k), EXACT)
    if MASKED:
        x = tl.where((row[None, :] <= newest[:, None]) & (row < last)[None, :], x, -float("inf"))
    higher = tl.maximum(top, tl.max(x, 1) * scale2)
    p = tl.exp2(x * scale2 - higher[:, None])
    shrink = tl.exp2(top - higher)
    v = rows_at(v_at, row, last, c, D, DP, MASKED)
    return higher, total * shrink + tl.sum(p, 1), out * shrink[:, None] + product(p.to(v.dtype), v, EXACT)


@triton.jit(do_not_specialize=["tokens", "queries"])
def attend_rows(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, tokens, queries, k_head, v_head, scale2,
    HEADS: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Program (block of BM queries, query head): attention over all rows or, with CAUSAL, up to each query's own."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    head = tl.program_id(1)
    i, c, n = block * BM + tl.arange(0, BM), tl.arange(0, DP), tl.arange(0, BN)
    real = (i < queries)[:, None] & (c < D)[None, :]
    at = (i * HEADS + head)[:, None].to(tl.int64) * D + c[None, :]
    q = tl.load(q_ptr + at, real, 0.0)
    k_at, v_at = k_ptr + (head // G).to(tl.int64) * k_head, v_ptr + (head // G).to(tl.int64) * v_head
    if CAUSAL:
        newest = tokens - queries + i
        end = tl.minimum(tokens, tokens - queries + block * BM + BM)
        whole = (tokens - queries + block * BM + 1) // BN * BN
    else:
        newest = tokens + i
        end = tokens
        whole = tokens // BN * BN
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, DP], tl.float32)
    for start in tl.range(0, whole, BN, num_stages=STAGES):
        top, total, out = attend_tile(q, top, total, out, k_at, v_at, start + n, tokens, newest, c, scale2, D, DP, False, EXACT)
    for start in tl.range(whole, end, BN, num_stages=1):
        top, total, out = attend_tile(q, top, total, out, k_at, v_at, start + n, tokens, newest, c, scale2, D, DP, True, EXACT)
    tl.store(out_ptr + at, (out / total[:, None]).to(out_ptr.dtype.element_ty), real)
    tl.store(lse_ptr + head * queries + i, (top + tl.log2(total)) * LN2, i < queries)


@triton.jit(do_not_specialize=["queries", "a_lse_head", "b_lse_head"])
def merge_two(
    a_ptr, a_lse_ptr, b_ptr, b_lse_ptr, out_ptr, lse_ptr, queries, a_query, a_head, a_lse_head, b_query, b_head, b_lse_head,
    HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (block of queries, query head): attention over two sets of rows from that over each; weights are exp(lse)."""
    head = tl.program_id(1)
    i, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, DP)
    here = i < queries
    real = here[:, None] & (c < D)[None, :]
    a_lse = tl.load(a_lse_ptr + head * a_lse_head + i, here, 0.0)
    b_lse = tl.load(b_lse_ptr + head * b_lse_head + i, here, 0.0)
    top = tl.maximum(a_lse, b_lse)
    a_weight, b_weight = tl.exp2((a_lse - top) * LOG2E), tl.exp2((b_lse - top) * LOG2E)
    total = a_weight + b_weight
    wide = i.to(tl.int64)[:, None]
    a = tl.load(a_ptr + wide * a_query + head * a_head + c[None, :], real, 0.0).to(tl.float32)
    b = tl.load(b_ptr + wide * b_query + head * b_head + c[None, :], real, 0.0).to(tl.float32)
    merged = a * (a_weight / total)[:, None] + b * (b_weight / total)[:, None]
    tl.store(out_ptr + (wide * HEADS + head) * D + c[None, :], merged.to(out_ptr.dtype.element_ty), real)
    tl.store(lse_ptr + head * queries + i, top + tl.log2(total) * LN2, here)


@triton.jit
def given(x, RUN: tl.constexpr, E: tl.constexpr, OVER_G: tl.constexpr):
    """What base-2 logarithms of probabilities x [row, pair], runs of RUN queries under each of E heads, give each row in all: [row, RUN], to be added up once.

    Tensor cores leave every eighth column of a tile in one thread: with runs of 8 nothing here moves between threads.
    """
    BT: tl.constexpr = x.shape[0]
    BQ: tl.constexpr = x.shape[1]
    if OVER_G == "max":
        return tl.sum(tl.exp2(tl.max(tl.reshape(x, [BT, BQ // (RUN * E), E, RUN]), 2)), 1)
    else:
        return tl.sum(tl.reshape(tl.exp2(x), [BT, BQ // RUN, RUN]), 1)


@triton.jit(do_not_specialize=["tokens", "queries"])
def mass_of_rows(
    q_rows, lse2_ptr, k_ptr, mass_ptr, tokens, queries, pairs, k_head, scale2,
    G: tl.constexpr, E: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BT: tl.constexpr, BQ: tl.constexpr, RUN: tl.constexpr,
    OVER_G: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Program (block of BT rows, KV head): mass [kv_head, token] = sum over the queries of the sum, mean or max over g of the probabilities.

    q_rows describes [kv_head * pairs, D] in blocks of [BQ, DP], and lse2 is [kv_head, pairs] in base 2: a head's `pairs` are runs of RUN queries under head 0,
    the same under head 1, .. E - 1, then the next run; lse2 is infinite where there is no query, and `pairs` a multiple of BQ.
    """
    first, h = tl.program_id(0) * BT, tl.program_id(1)
    row, c, n = first + tl.arange(0, BT), tl.arange(0, DP), tl.arange(0, BQ)
    k = rows_at(k_ptr + h.to(tl.int64) * k_head, row, tokens, c, D, DP, True)
    lse2_at = lse2_ptr + h * pairs + n
    newest = tokens - queries  # that the first query sees
    begin = tl.maximum(first - newest, 0) // RUN * RUN * E // BQ * BQ
    whole = ((tl.maximum(first + BT - 1 - newest, 0) + RUN - 1) // RUN * RUN * E + BQ - 1) // BQ * BQ  # from here on every query sees all rows
    mass = tl.zeros([BT, RUN], tl.float32)
    for start in tl.range(begin, tl.minimum(whole, pairs), BQ, num_stages=1):
        x = product(k, tl.trans(q_rows.load([h * pairs + start, 0])), EXACT) * scale2 - tl.load(lse2_at + start)[None, :]
        query = (start + n) // (RUN * E) * RUN + n % RUN
        mass += given(tl.where(row[:, None] <= newest + query[None, :], x, -float("inf")), RUN, E, OVER_G)
    for start in tl.range(whole, pairs, BQ, num_stages=STAGES):
        x = product(k, tl.trans(q_rows.load([h * pairs + start, 0])), EXACT) * scale2 - tl.load(lse2_at + start)[None, :]
        mass += given(x, RUN, E, OVER_G)
    of_row = tl.sum(mass, 1)
    tl.store(mass_ptr + h * tokens + row, of_row / G if OVER_G == "mean" else of_row, row < tokens)
