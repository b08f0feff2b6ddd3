"""Ranking in interpreter mode against the exact order of the torch ops: ties, NaN, infinities, counts of nothing and of everything, lines in parts."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from ranking import best_by_torch, scores
from sparsec_runtime.gpu.ranking import LARGEST, PARTS, groups_pay, part_of, rank_best, rank_grouped, rank_sampled, room_between, sampled_part
from test_triton_interpreter import ids_with

WHOLE, IN_PARTS, SAMPLED = 64, 16, 0  # entries of a part, of lines of 64
WAYS = pytest.mark.parametrize("part", [WHOLE, IN_PARTS, SAMPLED], ids=["whole", "parts", "sampled"])
HELD = (0, 1, 15, 16, 17, 40, 64, 64)
COUNTS = (0, 1, 3, 16, 5, 40, 20, 64)


def ranked(score, held, count, ends=None, unit=1, part=WHOLE):
    """Lists as rank_best writes them, -1 where it writes nothing."""
    out = torch.full((*score.shape[:2], max(1, max(count))), -1, dtype=torch.int32)
    numbers = [torch.tensor(x, dtype=torch.int32) for x in (held, count)]
    ends = None if ends is None else tuple(torch.tensor(x, dtype=torch.int32) for x in ends)
    if part == SAMPLED:
        rank_sampled(score, *numbers, out, ends=ends, unit=unit, part=IN_PARTS)
    else:
        rank_best(score, *numbers, out, ends=ends, unit=unit, part=part)
    return out


@WAYS
@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "special", "tiny"])
def test_the_best_are_those_of_the_stable_sort(kind, part):
    score = scores(kind, (len(HELD), 2, 64))
    found = ranked(score, HELD, COUNTS, ends=([0] * len(HELD), [0] * len(HELD)), part=part)
    for row, (held, count) in enumerate(zip(HELD, COUNTS)):
        for head in range(2):
            assert found[row, head].tolist() == best_by_torch(score[row, head, :held], count, 0, 0, found.shape[2])


@WAYS
def test_first_and_newest_entries_are_taken_before_all_others(part):
    score, first, newest = scores("special", (len(HELD), 1, 64)), (0, 1, 2, 0, 1, 20, 2, 4), (0, 1, 1, 5, 4, 20, 8, 60)
    found = ranked(score, HELD, COUNTS, ends=(first, newest), part=part)
    for row, (held, count) in enumerate(zip(HELD, COUNTS)):
        assert found[row, 0].tolist() == best_by_torch(score[row, 0, :held], count, first[row], newest[row], found.shape[2])


@WAYS
def test_of_more_entries_that_are_always_taken_than_are_asked_for_the_lowest_are(part):
    score = scores("distinct", (1, 2, 64))
    found = ranked(score, (60,), (5,), ends=((4,), (6,)), part=part)
    assert found[0, 0].tolist() == found[0, 1].tolist() == [0, 1, 2, 3, 54]


@pytest.mark.parametrize(("sample", "room"), [(256, 64), (256, 2), (16, 16)], ids=["close", "no room", "few"])
@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "special"])
def test_lists_do_not_depend_on_the_sample(kind, sample, room):
    held, count, first, newest = (64, 61, 33, 18), (32, 55, 8, 20), (3, 0, 2, 1), (2, 1, 0, 3)
    score = scores(kind, (len(held), 1, 64))
    numbers = [torch.tensor(x, dtype=torch.int32) for x in (held, count, first, newest)]
    found = torch.full((len(held), 1, 64), -1, dtype=torch.int32)
    rank_sampled(score, *numbers[:2], found, ends=tuple(numbers[2:]), part=16, sample=sample, room=room)
    for row, line in enumerate(score[:, 0]):
        assert found[row, 0].tolist() == best_by_torch(line[: held[row]], count[row], first[row], newest[row], 64)


@pytest.mark.parametrize("worst", [True, False])
def test_scores_that_the_sample_misses_are_found(worst):
    """All entries that 16 samples of 512 do not read are better than all others, or all that they read."""
    n = torch.arange(16)
    mixed = n * 2654435769 % (1 << 32)
    read = (n * 512 + (((mixed ^ (mixed >> 15)) & 0xFFFF) * 512 >> 16)) // 16
    line = scores("distinct", (512,))
    line[read] += -100 if worst else 100
    found = torch.full((1, 1, 40), -1, dtype=torch.int32)
    rank_sampled(line[None, None], torch.tensor([512]).int(), torch.tensor([40]).int(), found, part=128, sample=16, room=64)
    assert found[0, 0].tolist() == best_by_torch(line, 40, 0, 1, 40)


def test_lines_that_one_program_does_not_hold_are_ranked_by_a_sample(monkeypatch):
    calls = []
    monkeypatch.setattr("sparsec_runtime.gpu.ranking.LARGEST", 32)
    monkeypatch.setattr("sparsec_runtime.gpu.ranking.rank_sampled", lambda *args, **options: calls.append(args))
    found = torch.zeros(1, 1, 8, dtype=torch.int32)
    for entries in (32, 33):
        rank_best(scores("distinct", (1, 1, entries)), *torch.tensor([[entries], [8]]).int(), found)
    assert [args[0].shape[2] for args in calls] == [33]


@pytest.mark.parametrize(("lines", "entries", "best"), [(8, 32768, 2048), (1, 16385, 16000), (256, 131072, 4096), (1, 1 << 20, 1 << 15), (64, 1 << 21, 100)])
def test_parts_of_a_sampled_line_are_few_and_there_is_room_for_what_lies_between(lines, entries, best):
    part = sampled_part(lines, entries)
    room = room_between(entries, best, part // 2)
    assert part <= LARGEST and (-(-entries // part) <= PARTS or part == LARGEST)
    assert room & (room - 1) == 0 and room <= LARGEST
    assert sampled_part(8, 32768) == 2048 and sampled_part(256, 131072) == 8192 and room_between(32768, 2048, 1024) == 4096


@pytest.mark.parametrize("group", [1, 2, 8, 16])
@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "special", "tiny"])
def test_the_best_entries_lie_in_the_best_groups(kind, group):
    held, count = (1, 4, 17, 63, 64, 200, 255, 256), (1, 1, 2, 3, 11, 5, 7, 16)
    score = scores(kind, (len(held), 2, 64))
    found = torch.full((len(held), 2, 16), -1, dtype=torch.int32)
    numbers = [torch.tensor(x, dtype=torch.int32) for x in (held, count)]
    best = best_of_groups(score, [-(-tokens // 4) for tokens in held], group)
    rank_grouped(score, best, *numbers, found, group=group, unit=4, grouped=True)
    for row, tokens in enumerate(held):
        for head in range(2):
            assert found[row, head].tolist() == best_by_torch(score[row, head, : -(-tokens // 4)], count[row], 0, 1, 16)


def best_of_groups(score, entries, group):
    """The best score of each group of a line, no NaN where there is a number, from the first entries[row] entries; infinity behind them, which nothing may read."""
    best = torch.full((*score.shape[:2], 64 // group), float("inf"))
    for row, count in enumerate(entries):
        for n, part in enumerate(score[row, :, :count].split(group, 1)):
            best[row, :, n] = torch.where(part.isnan().all(1), float("nan"), part.nan_to_num(float("-inf"), float("inf"), float("-inf")).amax(1))
    return best


def test_groups_are_ranked_first_where_lines_are_long_and_few_entries_are_asked_for():
    assert groups_pay(8224, 8, 129) and groups_pay(1 << 16, 8, 129)
    assert not groups_pay(2080, 8, 129) and not groups_pay(8224, 8, 1024) and not groups_pay(1 << 20, 8, 129)


@WAYS
def test_entries_of_several_tokens_end_with_the_last_one_which_is_always_taken(part):
    held, count = (1, 16, 17, 63, 255, 256), (1, 1, 2, 3, 7, 64)
    score = scores("ties", (len(held), 3, 64))
    found = ranked(score, held, count, unit=4, part=part)
    for row, tokens in enumerate(held):
        for head in range(3):
            line = score[row, head, : -(-tokens // 4)]
            assert found[row, head].tolist() == best_by_torch(line, count[row], 0, 1, found.shape[2])


def test_lines_whose_best_do_not_fit_a_block_are_read_again_for_every_bit(monkeypatch):
    monkeypatch.setattr("sparsec_runtime.gpu.ranking.LARGEST", 32)
    for kind in ("special", "ties", "equal"):
        score = scores(kind, (2, 1, 100))
        found = ranked(score, (100, 77), (90, 41), ends=((3, 0), (5, 1)), part=IN_PARTS)
        assert found[0, 0].tolist() == best_by_torch(score[0, 0], 90, 3, 5, 90)
        assert found[1, 0].tolist() == best_by_torch(score[1, 0, :77], 41, 0, 1, 90)


@pytest.mark.parametrize(("entries", "best"), [(1, 1), (2048, 128), (8210, 132), (32768, 2048), (32769, 2116), (131072, 4096), (131072, 100_000), (1 << 20, 1 << 15)])
def test_a_line_is_ranked_whole_or_in_parts_that_hand_on_what_fits_a_block_where_it_can(entries, best):
    part = part_of(entries, best)
    assert part & (part - 1) == 0 and part <= LARGEST
    handed = -(-entries // part) * min(part, best)
    assert part >= entries or handed <= LARGEST or best > LARGEST // 8, "what is handed on is read 32 times only where no part narrows it enough"


def test_short_lines_are_ranked_in_one_launch_and_long_ones_of_few_best_in_two():
    assert part_of(2048, 128) == 2048 and part_of(8210, 132) < 8210


def test_decode_that_ranks_groups_of_pages_first_gives_the_ids_of_the_eager_path(monkeypatch):
    lines = []
    monkeypatch.setattr("sparsec_runtime.gpu.ranking.groups_pay", lambda entries, group, best: lines.append((entries, group)) or True)
    assert ids_with("quest", kernels=True)[0] == ids_with("quest", kernels=False)[0]
    assert max(entries // group for entries, group in lines) > 1


@pytest.mark.parametrize(("method", "where"), [("quest", "ranking"), ("h2o", "evict")])
def test_decode_that_ranks_in_parts_gives_the_ids_of_the_eager_path(method, where, monkeypatch):
    parts = []
    monkeypatch.setattr(f"sparsec_runtime.gpu.{where}.part_of", lambda entries, best: parts.append(entries) or 8)
    assert ids_with(method, kernels=True)[0] == ids_with(method, kernels=False)[0]
    assert max(parts) > 8
