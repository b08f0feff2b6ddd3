"""Sampling: known answers, draws that ignore batch mates, and each parameter's meaning."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsec_runtime.philox import philox, uniform
from sparsec_runtime.sampler import SamplingBatch, SamplingParams, TokenCounts, sample

HOT = SamplingParams(temperature=1.0, seed=7)


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, expected) -> None:
    assert tuple(int(word) for word in philox(words(*counter), words(*key))) == expected


def test_uniform_numbers_fill_the_unit_interval() -> None:
    draws = uniform(torch.full((20_000,), -5), torch.arange(20_000))
    assert 0 <= draws.min() < 0.001 and 0.999 < draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.01 and abs(draws.var() - 1 / 12) < 0.003


def draw(logits: torch.Tensor, params: SamplingParams, steps: int = 4000) -> torch.Tensor:
    """Frequencies [vocab] of one row's draws over many steps."""
    batch = SamplingBatch.of([params] * steps, logits.shape[-1], logits.device)
    seeds = torch.full((steps,), params.row_seed)
    ids, _ = sample(logits.expand(steps, -1), replace(batch, seeds=seeds), None, torch.arange(steps))
    return torch.bincount(ids, minlength=logits.shape[-1]) / steps


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(-(2**63), 2**63 - 1), step=st.integers(0, 2**40), mates=st.integers(0, 5), place=st.integers(0, 5))
def test_a_row_draws_the_same_whatever_its_mates(seed: int, step: int, mates: int, place: int) -> None:
    place = min(place, mates)
    logits = torch.randn(mates + 1, 50, generator=torch.Generator().manual_seed(mates))
    mine = SamplingParams(temperature=0.8, top_p=0.9, seed=seed)
    params = [SamplingParams(temperature=i % 3, top_k=i, seed=i) for i in range(mates + 1)]
    params[place] = mine
    steps = [i * 3 for i in range(mates + 1)]
    steps[place] = step
    alone, _ = sample(logits[place : place + 1], [mine], None, [step])
    together, _ = sample(logits, params, None, steps)
    assert together[place] == alone[0]


def test_greedy_takes_the_lower_of_equal_logits() -> None:
    logits = torch.zeros(2, 1000)
    logits[1, [300, 700]] = 1.0
    ids, logprobs = sample(logits, [SamplingParams()] * 2)
    assert ids.tolist() == [0, 300] and logprobs is None


def test_draws_follow_the_softmax_at_the_given_temperature() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    torch.testing.assert_close(draw(logits, replace(HOT, temperature=2.0)), (logits / 2).softmax(-1), atol=0.03, rtol=0)


@pytest.mark.parametrize("temperature", [1e-320, 1e-9, 1e9])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    frequencies = draw(torch.tensor([[80.0, -80.0, 79.0]])[0], replace(HOT, temperature=temperature), 300)
    assert frequencies[0] == 1 if temperature < 1 else frequencies.min() > 0.2


def test_top_k_keeps_the_k_largest_with_ties_to_the_lower_id() -> None:
    assert (draw(torch.tensor([1.0, 2.0, 1.0, 1.0]), replace(HOT, top_k=2), 500) > 0).tolist() == [True, True, False, False]
    assert (draw(torch.zeros(4), replace(HOT, top_k=99), 500) > 0).all()


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log()
    for top_p, kept in ((0.45, [1]), (0.75, [1, 2]), (0.85, [0, 1, 2]), (1e-9, [1])):
        assert (draw(logits, replace(HOT, top_p=top_p), 500) > 0).nonzero().flatten().tolist() == kept


def test_top_p_is_taken_of_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert (draw(logits, replace(HOT, top_k=2, top_p=0.55), 500) > 0).tolist() == [True, False, False, False]


def test_min_p_drops_what_is_small_beside_the_largest() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert (draw(logits, replace(HOT, min_p=0.25), 500) > 0).tolist() == [True, True, True, False]
    assert (draw(logits, replace(HOT, min_p=1.0), 100) > 0).tolist() == [True, False, False, False]


def test_repetition_counts_the_prompt_and_the_others_do_not() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0]])
    history = [([0], [])]
    assert sample(logits, [SamplingParams(presence_penalty=2.0, frequency_penalty=2.0)], history)[0] == 0
    assert sample(logits, [SamplingParams(repetition_penalty=1.5)], history)[0] == 1


def test_frequency_grows_with_each_occurrence_and_presence_does_not() -> None:
    logits, history = torch.tensor([[2.0, 1.0]]), [([], [0, 0, 0])]
    assert sample(logits, [SamplingParams(presence_penalty=0.9)], history)[0] == 0
    assert sample(logits, [SamplingParams(frequency_penalty=0.4)], history)[0] == 1


def test_negative_logits_are_multiplied_by_the_repetition_penalty() -> None:
    assert sample(torch.tensor([[-1.0, -1.5]]), [SamplingParams(repetition_penalty=2.0)], [([0], [])])[0] == 1


def test_penalties_of_one_row_leave_the_others() -> None:
    logits = torch.tensor([[2.0, 1.9]] * 2)
    ids, _ = sample(logits, [SamplingParams(repetition_penalty=1.5), SamplingParams()], [([0], []), ([0], [])])
    assert ids.tolist() == [1, 0]


def test_counts_kept_on_the_device_equal_counts_of_the_history() -> None:
    kept = TokenCounts.of([([0, 5], []), ([1], [])], 6, torch.device("cpu"))
    for ids in ([2, 3], [2, 4]):
        kept.count(torch.tensor(ids))
    anew = TokenCounts.of([([0, 5], [2, 2]), ([1], [3, 4])], 6, torch.device("cpu"))
    assert torch.equal(kept.generated, anew.generated) and torch.equal(kept.prompt, anew.prompt)


def test_logit_bias_moves_the_choice_but_not_the_logprobs() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0]])
    ids, logprobs = sample(logits, [SamplingParams(logit_bias={2: 10.0}, logprobs=2)])
    assert ids.tolist() == [2] and logprobs is not None
    torch.testing.assert_close(logprobs.chosen, logits.log_softmax(-1)[:, 2])
    assert logprobs.rank.tolist() == [3] and logprobs.top_ids.tolist() == [[0, 1]]
    torch.testing.assert_close(logprobs.top, logits.log_softmax(-1)[:, :2])


def test_without_a_seed_each_request_draws_its_own() -> None:
    first = SamplingParams(temperature=1.0)
    assert first.row_seed != SamplingParams(temperature=1.0).row_seed
    assert SamplingParams(seed=3).row_seed == 3
    assert replace(first).row_seed != first.row_seed


@pytest.mark.parametrize(
    ("field", "value", "legal"),
    [
        ("temperature", -0.1, "at least 0"),
        ("temperature", float("nan"), "at least 0"),
        ("temperature", "1", "at least 0"),
        ("top_k", -1, "at least 0"),
        ("top_k", 1.5, "a whole number"),
        ("top_p", 0, "above 0, at most 1"),
        ("top_p", 1.1, "at most 1"),
        ("min_p", 2, "at most 1"),
        ("presence_penalty", 3, "at least -2, at most 2"),
        ("frequency_penalty", -3, "at least -2, at most 2"),
        ("repetition_penalty", 0, "above 0"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", True, "at least 1"),
        ("seed", 2**64, "at most"),
        ("logprobs", 21, "at most 20"),
        ("stop", ("",), "at least one character"),
        ("stop_ids", (-1,), "at least 0"),
        ("logit_bias", {3: 101}, "at most 100"),
    ],
)
def test_values_out_of_range_name_the_field_the_value_and_the_range(field: str, value: object, legal: str) -> None:
    with pytest.raises(ValueError, match=field) as caught:
        SamplingParams(**{field: value})
    assert legal in str(caught.value)


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="logit_bias id = 99"):
        SamplingParams(logit_bias={99: 1.0}).check_vocab(50)
