"""Compiled ranking against the exact order of the torch ops, at the sizes that it is for, and lists of tokens against their definition."""

from __future__ import annotations

import math

import pytest
import torch
from ranking import scores
from sparsec_runtime.ops.ranking import Ranking, keep


def ranked(score, held, count, ends, unit=1, part=None):
    from sparsec_runtime.gpu.ranking import rank_best

    out = torch.full((*score.shape[:2], int(max(count))), -1, dtype=torch.int32, device="cuda")
    numbers = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in (held, count)]
    ends = None if ends is None else tuple(torch.tensor(x, dtype=torch.int32, device="cuda") for x in ends)
    rank_best(score, *numbers, out, ends=ends, unit=unit, part=part)
    return out


def best_of(score, held, count, first, newest):
    """The same lists from one stable sort, for rows that hold different counts."""
    entry = torch.arange(score.shape[2], device="cuda")
    held, count, first, newest = (torch.tensor(x, device="cuda")[:, None, None] for x in (held, count, first, newest))
    real = (entry < held).expand(score.shape)
    ends = real & ((entry < first) | (entry >= held - newest))
    mask = keep(ends, [Ranking("top", score, real)], upto=count[..., 0].expand(score.shape[:2]))
    out = torch.full((*score.shape[:2], int(count.max())), -1, dtype=torch.int32, device="cuda")
    at = mask.cumsum(-1) - 1
    row, head, index = mask.nonzero(as_tuple=True)
    out[row, head, at[row, head, index]] = index.int()
    return out


@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "special", "tiny"])
@pytest.mark.parametrize(
    ("rows", "entries", "best"),
    [(3, 1, 1), (3, 17, 5), (8, 2048, 128), (2, 8210, 132), (8, 32768, 2048), (3, 32769, 2116), (256, 32768, 4096), (64, 131072, 4096), (2, 131072, 70_000)],
)
def test_the_best_are_those_of_the_stable_sort(rows, entries, best, kind):
    score = scores(kind, (rows, 1, entries), device="cuda")
    held = [entries - (row * 37) % max(1, entries - best + 1) for row in range(rows)]
    count = [max(1, best - row % 3) for row in range(rows)]
    first, newest = [row % 2 * min(4, best // 3) for row in range(rows)], [min(8, best // 2) for _ in range(rows)]
    found = ranked(score, held, count, (first, newest))
    assert torch.equal(found, best_of(score, held, count, first, newest))


@pytest.mark.parametrize("part", [1024, 4096, 8192, 16384])
def test_parts_of_any_size_give_the_same_lists(part):
    score = scores("special", (4, 2, 32768), device="cuda")
    held, count, nothing = [32768, 32767, 20000, 3000], [2048, 1, 2048, 2048], [0] * 4
    assert torch.equal(ranked(score, held, count, (nothing, nothing), part=part), best_of(score, held, count, nothing, nothing))


@pytest.mark.parametrize(("part", "sample", "room"), [(1024, 256, 64), (2048, 1024, 4096), (4096, 2048, 2048), (8192, 4096, 4096), (16384, 4096, 16384)])
@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "special", "clusters"])
def test_lists_do_not_depend_on_the_sample(kind, part, sample, room):
    from sparsec_runtime.gpu.ranking import rank_sampled

    score = scores("distinct" if kind == "clusters" else kind, (5, 2, 32768), device="cuda")
    if kind == "clusters":
        score += 5 * scores("distinct", (5, 2, 64), device="cuda").repeat_interleave(512, -1)
    held, count, first, newest = [32768, 32767, 20000, 3000, 0], [2048, 1, 16000, 2048, 5], [4, 0, 0, 1, 0], [64, 1, 0, 5, 0]
    numbers = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in (held, count, first, newest)]
    out = torch.full((5, 2, 16000), -1, dtype=torch.int32, device="cuda")
    rank_sampled(score, *numbers[:2], out, ends=tuple(numbers[2:]), part=part, sample=sample, room=room)
    assert torch.equal(out, best_of(score, held, count, first, newest))


@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "special", "tiny"])
@pytest.mark.parametrize(("group", "warps"), [(8, 4), (8, 8), (16, 16), (64, None)])
def test_ranking_the_best_groups_first_gives_the_same_lists(kind, group, warps):
    from sparsec_runtime.gpu.ranking import rank_grouped

    score, held, count = scores(kind, (3, 8, 8256), device="cuda"), [8256 * 16, 8193 * 16 - 5, 131], [129, 128, 9]
    inside = torch.arange(8256, device="cuda") < torch.tensor([-(-tokens // 16) for tokens in held], device="cuda")[:, None, None]
    real = score.nan_to_num(-torch.inf, torch.inf, -torch.inf).masked_fill(~inside, -torch.inf).unflatten(2, (-1, group)).amax(3)
    nothing = (score.isnan() | ~inside).unflatten(2, (-1, group)).all(3)
    out = torch.full((3, 8, 129), -1, dtype=torch.int32, device="cuda")
    numbers = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in (held, count)]
    rank_grouped(score, real.masked_fill(nothing, torch.nan), *numbers, out, group=group, unit=16, grouped=True, warps=warps)
    assert torch.equal(out, best_of(score, [-(-tokens // 16) for tokens in held], count, [0] * 3, [1] * 3))


@pytest.mark.parametrize("pages", [1, 17, 2049, 8210])
def test_the_last_page_is_always_among_those_of_a_row(pages):
    score = scores("special", (3, 8, pages), device="cuda")
    tokens, count = [pages * 16 - 3, pages * 16, pages * 16 - 15], [min(pages, n) for n in (132, 1, 9)]
    wanted = best_of(score, [pages] * 3, count, [0] * 3, [1] * 3)
    assert torch.equal(ranked(score, tokens, count, None, unit=16), wanted)


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("heads", [9, 32])
def test_lists_of_tokens_hold_the_best_of_the_candidates(heads, shares):
    from sparsec_runtime.gpu.tokens import list_tokens

    held, first, newest, rows = [32768, 20001, 700, 4], [4, 0, 4, 4], [64, 1, 64, 64], 4
    count = [min(n, a + b + 2048) for n, a, b in zip(held, first, newest)]
    generator = torch.Generator().manual_seed(heads)
    logits = (4 * torch.randn(rows, heads, 32768, generator=generator)).cuda()
    listed = torch.full((rows, max(count)), -1, dtype=torch.int32, device="cuda")
    numbers = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in (held, first, newest, count)]
    list_tokens(logits, *numbers, listed, shares=shares)
    for row, (n, a, b, size) in enumerate(zip(held, first, newest, count)):
        if size == n:
            assert listed[row, :n].tolist() == list(range(n))
            continue
        inner = logits[row, :, a : n - b].double() * math.log(2.0)
        worth = (inner.softmax(-1) if shares else inner).amax(0)
        taken = listed[row, a : size - b].long() - a
        assert (listed[row, :size].diff() > 0).all() and listed[row, :a].tolist() == list(range(a)) and listed[row, size - b : size].tolist() == list(range(n - b, n))
        left = torch.ones_like(worth, dtype=torch.bool).index_fill(0, taken, False)
        assert worth[taken].min() >= worth[left].max() - 1e-5 * worth[left].max().abs(), "up to fp32 rounding nothing better is left"
