"""The worked examples of the method cards (their section 8), number by number, on the oracle."""

from __future__ import annotations

import pytest
import torch
from attention_rows import attended, from_logits, from_probs, kept, values

from sparsec.dsl.source import load_source
from sparsec.reference.codec import quantise
from sparsec.reference.pooling import SLIDING
from sparsec.reference.ranking import apportion, best
from sparsec.replay import replay


def close(got: dict[int, float] | list[float], wanted: list[float], tolerance: float = 6e-5) -> None:
    got = list(got.values()) if isinstance(got, dict) else got
    assert got == pytest.approx(wanted, abs=tolerance)


# ---- streamingllm ----------------------------------------------------------------------------


def random_rows(tokens: int, layers: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(layers, tokens, 1, 4, generator=generator) for _ in range(3))
    return {"q": q, "k": k, "v": v}


def test_streamingllm_keeps_sinks_and_the_newest_at_every_step() -> None:
    params = {"budget": 5, "sinks": 2}
    trace = replay("streamingllm", **random_rows(8), prompt_len=5, params=params, rotated=False, rope={"theta": 100.0}, chunk=1)
    assert [kept(trace, s) for s in range(4)] == [[0, 1, 2, 3, 4], [0, 1, 3, 4, 5], [0, 1, 4, 5, 6], [0, 1, 5, 6, 7]]
    assert [attended(trace, s) for s in range(1, 4)] == [[0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5, 6], [0, 1, 4, 5, 6, 7]]


def test_streamingllm_in_bursts_drops_when_the_row_has_doubled() -> None:
    params = {"budget": 5, "sinks": 2, "interval": 5, "positions": "original"}
    trace = replay("streamingllm", **random_rows(14), prompt_len=9, params=params)
    assert kept(trace, 0) == [0, 1, 6, 7, 8]
    assert kept(trace, 4) == [0, 1, 6, 7, 8, 9, 10, 11, 12]
    assert kept(trace, 5) == [0, 1, 11, 12, 13]


@pytest.mark.parametrize(("key", "dot"), [(2, -6.367959), (3, -2.391486), (5, 8.5)])
def test_a_dot_product_depends_on_the_difference_of_positions(key: int, dot: float) -> None:
    """Key in slot 2 and query in slot 5 are 3 apart; at their logical positions 5 and 7 they are 2 apart."""
    spec = """sparse 1
    method dots "records dot products" {
      state seen: f32 = 0
      on after_prefill_attention {
        let dots[i, h, g, t] = logits[i, h, g, t] / scale
        seen = max[i, h, g, t](dots[i, h, g, t])
      }
      ensure "a state is read" seen == seen
    }"""
    k = torch.zeros(1, 6, 1, 4, dtype=torch.float64)
    q = torch.zeros_like(k)
    k[0, key, 0], q[0, 5, 0] = torch.tensor([1.0, 2, 3, 4]), torch.tensor([0.5, -1, 2, 1])
    rope = {"theta": 100.0}
    trace = replay(spec, q=q, k=k, v=k, prompt_len=6, rotated=False, rope=rope, record=("dots",))
    recorded = trace.recorded["dots"][0][0]
    assert float(recorded.values[5, 0, 0, key]) == pytest.approx(dot, abs=1e-5)


# ---- h2o -------------------------------------------------------------------------------------

H2O_PROMPT = [[1.0], [0.5, 0.5], [0.4, 0.1, 0.5], [0.2, 0.4, 0.1, 0.3], [0.3, 0.3, 0.1, 0.1, 0.2], [0.1, 0.4, 0.1, 0.1, 0.1, 0.2]]


def h2o(interval: int, decode: dict[int, dict[int, float]]):
    rows = {token: [dict(enumerate(probs))] for token, probs in enumerate(H2O_PROMPT)}
    rows |= {token: [probs] for token, probs in decode.items()}
    params = {"budget": 4, "recent": 2, "interval": interval}
    return replay("h2o", **from_probs(rows, 8), prompt_len=6, params=params, record=("score",))


def test_h2o_evicts_at_every_step_by_the_mass_so_far() -> None:
    trace = h2o(1, {6: dict(zip([0, 1, 4, 5, 6], [0.1, 0.2, 0.4, 0.2, 0.1])), 7: dict(zip([0, 1, 5, 6, 7], [0.1, 0.3, 0.3, 0.2, 0.1]))})
    assert [kept(trace, s) for s in range(3)] == [[0, 1, 4, 5], [0, 1, 5, 6], [0, 1, 6, 7]]
    close(values(trace, "score", 0), [2.5, 1.7, 0.3, 0.2])
    close(values(trace, "score", 1), [2.6, 1.9, 0.4, 0.1])
    close(values(trace, "score", 2), [2.7, 2.2, 0.3, 0.1])


def test_h2o_in_bursts_of_two() -> None:
    rows = [0, 1, 4, 5, 6, 7]
    trace = h2o(2, {6: dict(zip(rows[:5], [0.1, 0.2, 0.4, 0.2, 0.1])), 7: dict(zip(rows, [0.1, 0.2, 0.1, 0.3, 0.2, 0.1]))})
    assert kept(trace, 1) == [0, 1, 4, 5, 6]
    assert kept(trace, 2) == [0, 1, 6, 7]
    close(values(trace, "score", 2), [2.7, 2.1, 0.3, 0.1])


# ---- snapkv ----------------------------------------------------------------------------------

SNAP = {
    6: [[1, 0, 2, 0, 0, 1.5, 0.5, 0], [0, 2.5, 0, 0, 1, 0, 0, 0]],
    7: [[0.5, 0, 1, 0, 0, 2.5, 0, 1], [0, 3, 0, 0.5, 0, 0, 1, 0]],
}


def snapkv(kernel: int, pooling: str = "maxpool", reduce: str = "mean", kv_heads: int = 1):
    params = {"budget": 5, "window": 2, "kernel": kernel, "pooling": pooling, "reduce": reduce}
    return replay("snapkv", **from_logits(SNAP, 8, kv_heads), prompt_len=8, params=params, record=("votes", "smooth"))


def test_snapkv_votes_of_each_query_head() -> None:
    trace = snapkv(1, kv_heads=2)
    close(values(trace, "smooth", 0, head=0), [0.2122, 0.0950, 0.5009, 0.0950, 0.0950, 0.7565])
    close(values(trace, "smooth", 0, head=1), [0.0842, 1.2941, 0.0842, 0.1062, 0.1705, 0.0842])
    assert kept(trace, 0, head=0) == [0, 2, 5, 6, 7]
    assert kept(trace, 0, head=1) == [1, 3, 4, 6, 7]


def test_snapkv_mean_and_max_over_the_group() -> None:
    trace = snapkv(1)
    close(values(trace, "smooth", 0), [0.1482, 0.6945, 0.2926, 0.1006, 0.1328, 0.4204])
    assert kept(trace, 0) == kept(snapkv(1, reduce="max"), 0) == [1, 2, 5, 6, 7]


def test_snapkv_pools_over_the_prefix_alone() -> None:
    average, largest = snapkv(3, "avgpool"), snapkv(3, "maxpool")
    close(values(average, "smooth", 0), [0.2809, 0.3784, 0.3626, 0.1753, 0.2179, 0.1844])
    close(values(largest, "smooth", 0), [0.6945, 0.6945, 0.6945, 0.2926, 0.4204, 0.4204])
    assert kept(average, 0) == kept(largest, 0) == [0, 1, 2, 6, 7]


def test_pool_borders_count_zeros_in_the_average_and_nothing_in_the_maximum() -> None:
    everything = torch.ones(1, 4, dtype=torch.bool)
    assert SLIDING["avgpool"](torch.tensor([[3.0, 0, 0, 3]]), everything, everything, 3).tolist() == [[1, 1, 1, 1]]
    three = everything[:, :3]
    assert SLIDING["maxpool"](torch.tensor([[-1.0, -2, -3]]), three, three, 3).tolist() == [[-1, -1, -2]]


# ---- pyramidkv -------------------------------------------------------------------------------

PYRAMID = [
    (135, "floor_step", [135] * 8),
    (136, "floor_step", [136] * 8),
    (200, "floor_step", [136] * 8),
    (255, "floor_step", [136] * 8),
    (256, "floor_step", [256, 222, 188, 154, 120, 86, 52, 18]),
    (1000, "floor_step", [258, 224, 190, 156, 122, 88, 54, 20]),
    (1000, "exact", [258, 223, 188, 153, 119, 84, 49, 14]),
]


@pytest.mark.parametrize(("tokens", "rounding", "rows"), PYRAMID)
def test_pyramidkv_budgets_fall_with_depth(tokens: int, rounding: str, rows: list[int]) -> None:
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(8, 8, 1, 2, generator=generator), torch.randn(8, tokens, 1, 2, generator=generator)
    params = {"budget": 136, "window": 8, "rounding": rounding}
    trace = replay("pyramidkv", q=q, k=k, v=k, prompt_len=tokens, q_start=tokens - 8, params=params)
    assert [len(trace.kept[0][layer][0]) for layer in range(8)] == rows


def test_exact_pyramid_budgets_sum_to_the_average() -> None:
    shares = apportion(250 - 244 * torch.arange(8) / 7, torch.tensor(1024))
    assert (shares + 8).tolist() == [258, 223, 188, 153, 119, 84, 49, 14]


# ---- ada_snapkv ------------------------------------------------------------------------------

ADA = [[0.40, 0.20, 0.10, 0.06, 0.04, 0.02], [0.30, 0.03, 0.02, 0.02, 0.01, 0.01]]


def ada(inner: int, alpha: float, rounding: str = "half_even") -> list[list[int]]:
    """Kept rows of the two heads, the window (row 6) left out."""
    rows = {6: [dict(enumerate([*scores, 1 - sum(scores)])) for scores in ADA]}
    params = {"budget": inner + 1, "window": 1, "kernel": 1, "alpha": alpha, "rounding": rounding}
    trace = replay("ada_snapkv", **from_probs(rows, 7, kv_heads=2), prompt_len=7, params=params)
    return [kept(trace, 0, head=head)[:-1] for head in (0, 1)]


@pytest.mark.parametrize(
    ("inner", "alpha", "rounding", "rows"),
    [
        (2, 0.0, "half_even", [[0, 1, 2], [0]]),
        (2, 0.2, "half_even", [[0, 1], [0]]),
        (2, 0.2, "exact", [[0, 1, 2], [0]]),
        (2, 0.5, "half_even", [[0, 1], [0, 1]]),
        (2, 1.0, "half_even", [[0, 1], [0, 1]]),
        (3, 0.2, "half_even", [[0, 1, 2, 3], [0]]),
        (3, 0.5, "half_even", [[0, 1, 2, 3], [0, 1]]),
    ],
)
def test_ada_snapkv_splits_the_budget_by_head(inner: int, alpha: float, rounding: str, rows: list[list[int]]) -> None:
    assert ada(inner, alpha, rounding) == rows


@pytest.mark.parametrize(("won", "alpha", "inner", "shares"), [([4, 4, 1], 0.5, 3, [4, 3, 2]), ([10, 1, 1], 0.2, 4, [9, 2, 1])])
def test_largest_remainder_loses_no_row(won: list[int], alpha: float, inner: int, shares: list[int]) -> None:
    raw = (1 - alpha) * torch.tensor(won).double() + alpha * inner
    assert apportion(raw, torch.tensor(3 * inner)).tolist() == shares


# ---- tova ------------------------------------------------------------------------------------


def test_tova_breaks_a_tie_for_the_lower_position() -> None:
    mean = torch.tensor([0.25, 0.2, 0.35, 0.2])
    assert best(mean, torch.ones(4, dtype=torch.bool), torch.tensor(3)).nonzero().squeeze(-1).tolist() == [0, 1, 2]


def test_tova_may_drop_the_newest_row_at_once() -> None:
    rows = {3: [dict(enumerate([0.5, 0.3, 0.15, 0.05])), dict(enumerate([0.4, 0.3, 0.25, 0.05]))]}
    trace = replay("tova", **from_probs(rows, 4), prompt_len=4, params={"budget": 3, "protect": 0})
    assert kept(trace, 0) == [0, 1, 2]


# ---- quest -----------------------------------------------------------------------------------

QUEST_K = [(3, 0), (1, 1), (0, 3), (-1, 2), (2, -2), (-2, 2), (1, -1)]


def quest(pages: int, heads: str):
    spec = load_source("quest").text.replace("in {4,", "in {2, 4,")
    k = torch.tensor(QUEST_K, dtype=torch.float32)[None, :, None]
    v = torch.stack((torch.arange(7), 10 - torch.arange(7)), -1).float()[None, :, None]
    q = torch.tensor([[[[1, -1], [-1, 1.5]]]])
    params = {"page_size": 2, "budget": 2 * pages, "min_pages": 1, "dense": 0, "heads": heads}
    return replay(spec, q=q, k=k, v=v, prompt_len=6, q_start=6, params=params, record=("reach", "kmin", "kmax"))


def test_quest_bounds_every_page() -> None:
    trace = quest(2, "kv_head")
    reach = trace.recorded["reach"][1][0]
    assert reach.letters == ("h", "g", "p")
    assert reach.values[0, :, :3].tolist() == [[3, -2, 4], [0.5, 5.5, 5]]
    assert trace.recorded["kmax"][1][0].values[0, :3].tolist() == [[3, 1], [0, 3], [2, 2]]
    assert trace.recorded["kmin"][1][0].values[0, :3].tolist() == [[1, 0], [-1, 2], [-2, -2]]


def test_quest_reads_the_best_page_and_the_open_one() -> None:
    each, group = quest(2, "query_head"), quest(2, "kv_head")
    assert [attended(each, 1, head=head) for head in (0, 1)] == [[4, 5, 6], [2, 3, 6]]
    assert [attended(group, 1, head=head) for head in (0, 1)] == [[2, 3, 6], [2, 3, 6]]
    close(each.output[0, 0, 0].tolist(), [4.392847, 5.607153], 1e-5)
    close(each.output[0, 0, 1].tolist(), [2.427392, 7.572608], 1e-5)
    close(group.output[0, 0, 0].tolist(), [5.807233, 4.192767], 1e-5)
    assert attended(quest(3, "kv_head"), 1) == [2, 3, 4, 5, 6]


def test_quest_with_a_budget_above_the_context_is_dense() -> None:
    trace = quest(4, "kv_head")
    assert attended(trace, 1) == list(range(7))
    close(trace.output[0, 0, 0].tolist(), [3.072717, 6.927282], 1e-5)
    close(trace.output[0, 0, 1].tolist(), [3.543213, 6.456787], 1e-5)


# ---- omnikv ----------------------------------------------------------------------------------

OMNI = {9: [[9.0, 8.0, 8.1, 8.2, 8.3, 8.2, 8.1, 8.0, 9.0, 9.0], [0, -3, 5, -3, -3, 4, -3, 3, 1, 1]]}


def omnikv(selector: str):
    params = {"filters": frozenset({0}), "budget": 3, "sinks": 1, "window": 2, "selector": selector}
    return replay("omnikv", **from_logits(OMNI, 10, layers=2), prompt_len=9, params=params, record=("drawn",))


def test_omnikv_chooses_by_the_best_head_of_a_softmax_over_candidates() -> None:
    trace = omnikv("softmax")
    close(values(trace, "drawn", 1), [0.124953, 0.664648, 0.152618, 0.168669, 0.244510, 0.138095, 0.124953], 1e-5)
    assert attended(trace, 1, layer=0) == list(range(10))
    assert attended(trace, 1, layer=1) == [0, 2, 4, 5, 8, 9]


def test_omnikv_by_raw_logits_misses_a_token_that_one_head_wants() -> None:
    assert attended(omnikv("logit"), 1, layer=1) == [0, 3, 4, 5, 8, 9]


# ---- kivi ------------------------------------------------------------------------------------


def test_kivi_codes_of_a_key_channel() -> None:
    coded = quantise(torch.tensor([[0, 1, 2, 6], [-1, 0.5, 2, 5]]).T, axis=0, block=4, bits=2)
    assert coded.codes.T.tolist() == [[0, 0, 1, 3], [0, 1, 2, 3]]
    assert coded.values.T.tolist() == [[0, 0, 2, 6], [-1, 1, 3, 5]]


def test_kivi_codes_of_a_value_row() -> None:
    row = torch.tensor([[-1.5, -1, -0.5, 0, 0.5, 1, 1.5, 3, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]])
    coded = quantise(row, axis=1, block=8, bits=4)
    assert coded.codes.tolist() == [[0, 2, 3, 5, 7, 8, 10, 15, 0, 2, 4, 6, 9, 11, 13, 15]]
    close(coded.scale[0, ::8].tolist(), [0.3, 0.0466667], 1e-6)
    close(coded.minimum[0, ::8].tolist(), [-1.5, 0.1], 1e-6)


def test_kivi_gives_a_constant_group_back_exactly() -> None:
    coded = quantise(torch.full((4, 1), 0.7), axis=0, block=4, bits=2)
    assert coded.values.tolist() == torch.full((4, 1), 0.7).tolist()
    assert coded.scale.unique().tolist() == [1.0]


def test_kivi_flushes_keys_in_bursts_and_values_one_by_one() -> None:
    params = {"block": 4, "residual": 4}
    trace = replay("kivi", **random_rows(9), prompt_len=6, params=params, record=("packed.rows", "tail.rows"))
    packed = [trace.recorded["packed.rows"][s][0].values.tolist() for s in range(4)]
    tail = [trace.recorded["tail.rows"][s][0].values.tolist() for s in range(4)]
    assert packed == [[4, 2], [4, 3], [8, 4], [8, 5]]
    assert tail == [[2, 4], [3, 4], [0, 4], [1, 4]]


@pytest.mark.parametrize(
    ("bits", "errors"), [(2, [0.3932, 0.4504, 0.5016]), (4, [0.0783, 0.0897, 0.1002]), (8, [0.0046, 0.0053, 0.0059])]
)
def test_kivi_error_on_gaussian_data(bits: int, errors: list[float]) -> None:
    x = torch.randn(1024, 128, generator=torch.Generator().manual_seed(0))
    for block, error in zip((32, 64, 128), errors):
        for axis in (0, 1):
            got = (quantise(x, axis, block, bits).values - x).norm() / x.norm()
            assert float(got) == pytest.approx(error, rel=0.02)
