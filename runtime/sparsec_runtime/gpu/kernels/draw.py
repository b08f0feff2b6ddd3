"""What tokens are worth to a choice that all heads share: the best, over query heads, of a token's share of the candidates, or of its logit.

Candidates are the tokens of a row between its first and its newest ones. Logits [row, query head, token] are in base 2, as attention writes them.
Parts are summed in their order, without atomics, so a row's worths depend on that row alone.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next


@triton.jit
def sum_candidates(
    logits_ptr, len_ptr, first_ptr, newest_ptr, top_ptr, total_ptr, logits_row,
    HQ: tl.constexpr, HP: tl.constexpr, PART: tl.constexpr, TILE: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """top, total [row, part, HQ]: of the candidates among a part's PART tokens the largest logit, -inf where there is none, and the sum of exp2(logit - top).

    Program (part, row).
    """
    after_previous(CHAINED)
    let_next(CHAINED)
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    head, t = tl.arange(0, HP), tl.arange(0, TILE)
    begin = tl.maximum(part * PART, tl.load(first_ptr + row))
    end = tl.minimum(part * PART + PART, tl.load(len_ptr + row) - tl.load(newest_ptr + row))
    top, total = tl.full([HP], -float("inf"), tl.float32), tl.zeros([HP], tl.float32)
    for start in range(begin, end, TILE):
        inside = (head < HQ)[:, None] & (start + t < end)[None, :]
        x = tl.load(logits_ptr + (row * HQ + head)[:, None] * logits_row + start + t[None, :], inside, -float("inf"))
        higher = tl.maximum(top, tl.max(x, 1))
        total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(x - higher[:, None]), 1)
        top = higher
    at = (row * tl.num_programs(0) + part) * HQ + head
    tl.store(top_ptr + at, top, head < HQ)
    tl.store(total_ptr + at, total, head < HQ)


@triton.jit
def worth_of_tokens(
    logits_ptr, top_ptr, total_ptr, len_ptr, first_ptr, newest_ptr, worth_ptr, logits_row, worth_row, parts,
    HQ: tl.constexpr, HP: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr, PARTS: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """worth [row, token] of the candidates: the largest over heads of exp2(logit - log2 of the row's sum over candidates) if SHARES, else of the logit.

    Program (tile, row); PARTS: `parts` of sum_candidates, padded.
    """
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(1).to(tl.int64)
    head, token = tl.arange(0, HP), tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = (token >= tl.load(first_ptr + row)) & (token < tl.load(len_ptr + row) - tl.load(newest_ptr + row))
    if tl.max(here.to(tl.int32), 0) > 0:
        inside = (head < HQ)[:, None] & here[None, :]
        worth = tl.load(logits_ptr + (row * HQ + head)[:, None] * logits_row + token[None, :], inside, -float("inf"))
        if SHARES:
            part = tl.arange(0, PARTS)
            real = (head < HQ)[:, None] & (part < parts)[None, :]
            at = (row * parts + part)[None, :] * HQ + head[:, None]
            tops = tl.load(top_ptr + at, real, -float("inf"))
            top = tl.where(head < HQ, tl.max(tops, 1), 0.0)
            total = tl.sum(tl.load(total_ptr + at, real, 0.0) * tl.exp2(tops - top[:, None]), 1)
            worth = tl.exp2(worth - tl.where(head < HQ, top + tl.log2(total), 0.0)[:, None])
        tl.store(worth_ptr + row * worth_row + token, tl.max(worth, 0), here)


@triton.jit
def slots_of_tokens(listed_ptr, count_ptr, table_ptr, listed_row, table_row, PAGE: tl.constexpr, TILE: tl.constexpr, CHAINED: tl.constexpr = False):
    """listed [row, n]: the index of a row's token becomes page * PAGE + slot, in place. Program (tile, row)."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, n = tl.program_id(1).to(tl.int64), tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = n < tl.load(count_ptr + row)
    at = listed_ptr + row * listed_row + n
    token = tl.load(at, here, 0)
    page = tl.load(table_ptr + row * table_row + token // PAGE, here, 0)
    tl.store(at, page * PAGE + token % PAGE, here)
