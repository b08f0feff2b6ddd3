"""Ops against numbers worked out by hand."""

import pytest
import torch
from sparsec_runtime import ops

INF, NAN = float("inf"), float("nan")


def members(text: str) -> torch.Tensor:
    """'1.1' -> [[[True, False, True]]]: one row, one head."""
    return torch.tensor([[[letter == "1" for letter in text]]])


def text(mask: torch.Tensor) -> str:
    return "".join("1" if bit else "." for bit in mask.flatten().tolist())


# ---- rankings ------------------------------------------------------------------------------------


def test_top_gives_ties_to_the_lower_index():
    score = torch.tensor([[[2.0, 5.0, 5.0, 2.0, 5.0]]])
    assert text(ops.top(score, None, 2)) == ".11.."
    assert text(ops.top(score, None, 4)) == "111.1"


def test_top_ranks_nan_after_minus_infinity_and_never_takes_what_is_no_candidate():
    score = torch.tensor([[[NAN, -INF, 1.0, INF]]])
    candidates = members("111.")
    assert text(ops.top(score, candidates, 1)) == "..1."
    assert text(ops.top(score, candidates, 2)) == ".11."
    assert text(ops.top(score, candidates, 9)) == "111."


def test_bottom_takes_the_smallest_and_ranks_nan_last_too():
    score = torch.tensor([[[NAN, 3.0, -1.0, -INF]]])
    assert text(ops.bottom(score, None, 2)) == "..11"
    assert text(ops.bottom(score, None, 3)) == ".111"


def test_zero_and_minus_zero_tie():
    assert text(ops.top(torch.tensor([[[-0.0, 0.0]]]), None, 1)) == "1."
    assert text(ops.top(torch.tensor([[[0.0, -0.0]]], dtype=torch.float64), None, 1)) == "1."


def test_negative_scores_keep_their_order_in_every_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32):
        score = torch.tensor([[[-3, -1, -2, 4]]], dtype=dtype)
        assert text(ops.top(score, None, 2)) == ".1.1", dtype
        assert text(ops.bottom(score, None, 2)) == "1.1.", dtype


def test_a_joint_ranking_lets_heads_compete_and_prefers_the_lower_head_in_a_tie():
    score = torch.tensor([[[1.0, 9.0, 5.0], [5.0, 8.0, 7.0]]])
    mask = ops.top(score, None, 4, axes=(1, 2))
    assert text(mask[:, 0]) == ".11" and text(mask[:, 1]) == ".11"


def test_counts_differ_per_row_and_per_head():
    score = torch.arange(12.0).reshape(2, 2, 3)
    mask = ops.top(score, None, torch.tensor([[1, 2], [3, 0]]))
    assert mask.sum(-1).tolist() == [[1, 2], [3, 0]]
    assert ops.top(score, None, torch.tensor([1, 2])).sum(-1).tolist() == [[1, 1], [2, 2]]


def test_nucleus_takes_the_fewest_that_reach_the_mass():
    score = torch.tensor([[[0.1, 0.5, 0.3, 0.1]]])
    assert text(ops.nucleus(score, None, 0.5)) == ".1.."
    assert text(ops.nucleus(score, None, 0.6)) == ".11."
    assert text(ops.nucleus(score, None, 0.0)) == ".1.."
    assert text(ops.nucleus(score, members("...."), 0.5)) == "...."


def test_keep_counts_the_protected_and_fills_up_with_the_best_of_the_rest():
    score = torch.tensor([[[9.0, 1.0, 8.0, 7.0, 0.0]]])
    best = ops.Ranking("top", score, members("11111"))
    assert text(ops.keep(members("...11"), [best], 3)) == "1..11"
    assert text(ops.keep(members("1..11"), [best], 3)) == "1..11"
    assert text(ops.keep(members("11111"), [best], 3)) == "11111"


def test_keep_runs_its_rankings_in_order():
    score = torch.tensor([[[9.0, 1.0, 8.0, 7.0, 0.0]]])
    worst = ops.Ranking("bottom", score, members("1111."), 1)
    best = ops.Ranking("top", score, members("11111"))
    assert text(ops.keep(members("....1"), [worst, best], 3)) == "11..1"


def test_a_joint_keep_counts_over_all_heads():
    score = torch.tensor([[[9.0, 8.0, 7.0, 0.0], [1.0, 2.0, 3.0, 0.0]]])
    protected = torch.tensor([[[False, False, False, True]] * 2])
    kept = ops.keep(protected, [ops.Ranking("top", score, torch.ones_like(protected), axes=(1, 2))], 5)
    assert kept.sum(-1).tolist() == [[4, 1]]


# ---- positional sets -----------------------------------------------------------------------------


def test_positional_sets_count_members_and_not_slots():
    held = members(".11.1.1")
    assert text(ops.sink(held, 2)) == ".11...."
    assert text(ops.recent(held, 2)) == "....1.1"
    assert text(ops.oldest(held, 3)) == ".11.1.."
    assert text(ops.every(held, 2)) == ".1..1.."
    assert text(ops.recent(held, 9)) == text(held)
    assert text(ops.recent(held, 0)) == "......."


def test_positional_sets_take_a_number_per_row():
    held = torch.ones((2, 1, 4), dtype=torch.bool)
    assert ops.recent(held, torch.tensor([1, 3])).sum(-1).flatten().tolist() == [1, 3]


def test_the_open_page_is_that_of_the_newest_member():
    assert text(ops.open_page(members("11111.."), 2)) == "..1."
    assert text(ops.open_page(members("......."), 2)) == "...."


def test_pages_and_tokens_convert_both_ways():
    assert text(ops.page_any(members("....1"), 2)) == "..1"
    assert text(ops.pages_to_tokens(members("1.1"), 2, 5)) == "11..1"


def test_page_reductions_ignore_what_is_not_a_member():
    x = torch.tensor([[[[4.0], [-2.0], [7.0], [3.0], [5.0]]]])
    held = members("111.1")
    assert ops.page_max(x, held, 2).flatten().tolist() == [4.0, 7.0, 5.0]
    assert ops.page_min(x, held, 2).flatten().tolist() == [-2.0, 7.0, 5.0]
    assert ops.page_mean(x, held, 2).flatten().tolist() == [1.0, 7.0, 5.0]
    assert ops.page_sum(x, held, 2).flatten().tolist() == [2.0, 7.0, 5.0]


# ---- windows, shares, reductions -----------------------------------------------------------------


def test_average_pooling_divides_by_the_width_at_the_borders():
    x = torch.tensor([[[3.0, 0.0, 0.0, 3.0]]])
    assert ops.avgpool(x, members("1111"), 3).flatten().tolist() == [1.0, 1.0, 1.0, 1.0]


def test_max_pooling_pads_with_minus_infinity():
    x = torch.tensor([[[-1.0, -2.0, -3.0]]])
    assert ops.maxpool(x, members("111"), 3).flatten().tolist() == [-1.0, -1.0, -2.0]


def test_a_gap_in_the_support_keeps_its_place_and_counts_as_padding():
    x = torch.tensor([[[1.0, 50.0, 2.0, 4.0, 99.0]]])
    assert ops.maxpool(x, members("1.11."), 3).flatten().tolist() == [1.0, 0.0, 4.0, 4.0, 0.0]
    assert ops.avgpool(x, members("1.11."), 3).flatten().tolist() == pytest.approx([1 / 3, 0.0, 2.0, 2.0, 0.0])


def test_smoothed_votes_are_those_of_the_worked_example():
    votes = torch.tensor([[[0.1482, 0.6945, 0.2926, 0.1006, 0.1328, 0.4204, 9.0, 9.0]]])
    support = members("111111..")
    average = ops.avgpool(votes, support, 3)[..., :6]
    assert torch.allclose(average, torch.tensor([0.2809, 0.3784, 0.3626, 0.1753, 0.2179, 0.1844]), atol=1e-4)
    assert text(ops.keep(members("......11"), [ops.Ranking("top", ops.maxpool(votes, support, 3), support)], 5)) == "111...11"


def test_softmax_is_over_the_support_and_zero_where_it_is_empty():
    x = torch.tensor([[[1.0, 1.0, 800.0]]])
    assert ops.softmax(x, members("11.")).flatten().tolist() == [0.5, 0.5, 0.0]
    assert ops.softmax(x, members("...")).flatten().tolist() == [0.0, 0.0, 0.0]
    assert ops.softmax(torch.full((1, 1, 2), -INF), members("11")).flatten().tolist() == [0.0, 0.0]


def test_apportion_gives_the_rest_to_the_largest_remainders_and_ties_to_the_lower_index():
    raw = torch.tensor([[2.5, 1.25, 1.25]], dtype=torch.float64)
    assert ops.apportion(raw, 5).tolist() == [[3, 1, 1]]
    assert ops.apportion(torch.tensor([[1.5, 1.5, 1.0]]), 4).tolist() == [[2, 1, 1]]
    assert ops.apportion(torch.tensor([[4.999999999999999, 2.0]], dtype=torch.float64), 7).tolist() == [[5, 2]]


def test_shares_on_the_host_are_those_on_the_device():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        members_ = int(torch.randint(1, 9, (1,), generator=generator))
        raw = torch.rand(members_, generator=generator, dtype=torch.float64) * 20
        total = round(float(raw.sum())) + int(torch.randint(-2, 3, (1,), generator=generator))
        device = ops.apportion(raw[None], total)[0].tolist()
        assert device == ops.whole_shares(raw.tolist(), total) and sum(device) == total


def test_reductions_over_no_member_are_neutral():
    x, none = torch.tensor([[1.0, 2.0]]), torch.zeros((1, 2), dtype=torch.bool)
    assert ops.masked_sum(x, none, 1).item() == 0 and ops.masked_mean(x, none, 1).item() == 0
    assert ops.masked_max(x, none, 1).item() == -INF and ops.masked_min(x, none, 1).item() == INF


def test_quotients_are_float64_and_rounding_gives_whole_numbers():
    thirds = ops.ratio(torch.tensor([10, 5]), 2)
    assert thirds.dtype == torch.float64
    assert ops.round_even(ops.ratio(torch.tensor([5, 7]), 2)).tolist() == [2, 4]
    assert ops.least(torch.tensor([3, 9]), 5).tolist() == [3, 5] and ops.greatest(2, 3) == 3
