"""What a prompt's newest queries give each row: their log-sum-exp over runs of tokens, then the sum of their probabilities, both by runs of a fixed length.

Q [row, query, kv_head, group, D]; K [row, kv_head, token, D] with any distance between rows and heads, D channels padded to DP; row_pos [row, kv_head, token]
int64, -1 where there is no row; query_pos, query_valid [row, query]. A query sees the rows at positions up to its own.
A block holds BM pairs (query head, query), IB = BM / GP queries under each of the G heads of a group, padded to GP.
"""

import triton
import triton.language as tl

from .tools import product


@triton.jit
def pairs_of(
    q_ptr, query_pos_ptr, query_valid_ptr, row, h, block, queries,
    H: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Queries [BM, DP] of a block's pairs, and up to which position each sees [BM]: -1 where there is no query."""
    IB: tl.constexpr = BM // GP
    r, c = tl.arange(0, BM), tl.arange(0, DP)
    g, i = r // IB, block * IB + r % IB
    real = (g < G) & (i < queries)
    at = row * queries + i
    q = tl.load(q_ptr + (((at * H + h) * G + g) * D).to(tl.int64)[:, None] + c[None, :], real[:, None] & (c < D)[None, :], 0.0)
    valid = tl.load(query_valid_ptr + at, real, 0) != 0
    return q, tl.where(valid, tl.load(query_pos_ptr + at, real, -1), -1).to(tl.int32)


@triton.jit
def of_program(
    q_ptr, k_ptr, row_pos_ptr, query_pos_ptr, query_valid_ptr, queries, k_row, k_head, pos_row, pos_head,
    H: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Of program (run, block, row * H + h): where K and the positions of its row and head lie, and pairs_of its block."""
    row, h = tl.program_id(2) // H, tl.program_id(2) % H
    k_ptr += row.to(tl.int64) * k_row + h.to(tl.int64) * k_head
    row_pos_ptr += row.to(tl.int64) * pos_row + h * pos_head
    q, newest = pairs_of(q_ptr, query_pos_ptr, query_valid_ptr, row, h, tl.program_id(1), queries, H, G, GP, D, DP, BM)
    return k_ptr, row_pos_ptr, q, newest


@triton.jit
def keys_of(k_ptr, row_pos_ptr, t, end, D: tl.constexpr, DP: tl.constexpr):
    """K [n, DP] of the tokens t, and their positions [n]: none from `end` on."""
    c = tl.arange(0, DP)
    k = tl.load(k_ptr + t[:, None].to(tl.int64) * D + c[None, :], (t < end)[:, None] & (c < D)[None, :], 0.0)
    return k, tl.load(row_pos_ptr + t, t < end, -1).to(tl.int32)


@triton.jit
def with_more(top, total, x, AXIS: tl.constexpr):
    """One step of a running log-sum-exp along an axis of x, base 2: the maximum and the sum [BM] of exp2(x - maximum); -inf adds nothing."""
    higher = tl.maximum(top, tl.max(x, AXIS))
    least = tl.where(higher == -float("inf"), 0.0, higher)
    return higher, total * tl.exp2(top - least) + tl.sum(tl.exp2(x - tl.expand_dims(least, AXIS)), AXIS)


@triton.jit(do_not_specialize=["tokens", "queries", "pos_row", "pos_head"])
def lse_of_window(
    q_ptr, k_ptr, row_pos_ptr, query_pos_ptr, query_valid_ptr, lse_ptr, tokens, queries, k_row, k_head, pos_row, pos_head, scale2,
    H: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, RUN: tl.constexpr,
    STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """lse [row * H, block, run, BM] in base 2 of each pair over the tokens of a run. Program (run of RUN tokens, block, row * H + h)."""
    run, block, place = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k_ptr, row_pos_ptr, q, newest = of_program(
        q_ptr, k_ptr, row_pos_ptr, query_pos_ptr, query_valid_ptr, queries, k_row, k_head, pos_row, pos_head, H, G, GP, D, DP, BM
    )  # fmt: skip
    end = tl.minimum(run * RUN + RUN, tokens)
    top, total = tl.full([BM], -float("inf"), tl.float32), tl.zeros([BM], tl.float32)
    for start in tl.range(run * RUN, end, BN, num_stages=STAGES):
        k, pos = keys_of(k_ptr, row_pos_ptr, start + tl.arange(0, BN), end, D, DP)
        x = product(q, tl.trans(k), EXACT) * scale2
        x = tl.where((pos >= 0)[None, :] & (pos[None, :] <= newest[:, None]), x, -float("inf"))
        top, total = with_more(top, total, x, 1)
    at = ((place * tl.num_programs(1) + block) * tl.num_programs(0) + run) * BM + tl.arange(0, BM)
    tl.store(lse_ptr + at, top + tl.log2(tl.where(total > 0, total, 1.0)))


@triton.jit
def over_runs(lse_ptr, runs, BM: tl.constexpr, EACH: tl.constexpr):
    """lse [BM] over all runs from those of each [run, BM]; infinite where a pair sees nothing, so that what it gives is 0."""
    r, s = tl.arange(0, BM), tl.arange(0, EACH)
    top, total = tl.full([BM], -float("inf"), tl.float32), tl.zeros([BM], tl.float32)
    for first in range(0, runs, EACH):
        part = tl.load(lse_ptr + (first + s)[:, None] * BM + r[None, :], (first + s < runs)[:, None], -float("inf"))
        top, total = with_more(top, total, part, 0)
    return tl.where(top == -float("inf"), float("inf"), top + tl.log2(tl.where(total > 0, total, 1.0)))


@triton.jit(do_not_specialize=["tokens", "queries", "pos_row", "pos_head"])
def mass_of_window(
    q_ptr, k_ptr, row_pos_ptr, query_pos_ptr, query_valid_ptr, lse_ptr, mass_ptr, tokens, queries, k_row, k_head, pos_row, pos_head, scale2,
    H: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, RUN: tl.constexpr,
    STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """mass [row * H, block, G, token]: the sum of the probabilities of a block's queries. Program as above."""
    run, block, place = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = place * tl.num_programs(1) + block
    k_ptr, row_pos_ptr, q, newest = of_program(
        q_ptr, k_ptr, row_pos_ptr, query_pos_ptr, query_valid_ptr, queries, k_row, k_head, pos_row, pos_head, H, G, GP, D, DP, BM
    )  # fmt: skip
    lse = over_runs(lse_ptr + at * tl.num_programs(0) * BM, tl.num_programs(0), BM, 16)
    mass_ptr += (at * G).to(tl.int64) * tokens
    g = tl.arange(0, GP)
    end = tl.minimum(run * RUN + RUN, tokens)
    for start in tl.range(run * RUN, end, BN, num_stages=STAGES):
        t = start + tl.arange(0, BN)
        k, pos = keys_of(k_ptr, row_pos_ptr, t, end, D, DP)
        p = tl.exp2(product(k, tl.trans(q), EXACT) * scale2 - lse[None, :])
        p = tl.where((pos >= 0)[:, None] & (pos[:, None] <= newest[None, :]), p, 0.0)
        mass = tl.sum(tl.reshape(p, [BN, GP, BM // GP]), 2)
        tl.store(mass_ptr + g[None, :].to(tl.int64) * tokens + t[:, None], mass, (g < G)[None, :] & (t < end)[:, None])
