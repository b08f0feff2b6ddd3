"""The engine over every shipped method: batches, chunks, preemption, failures, leaks."""

from __future__ import annotations

import random

import pytest
import torch
from engines import METHODS, SMALL, add, drain, engine, ids_of, prompt, run_alone
from sparsec_runtime.request import FinishReason, RequestError
from sparsec_runtime.sampler import SamplingParams

EVICTING_OR_SELECTING = tuple(m for m in METHODS if m not in ("dense", "kivi"))


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_with_joins_and_leaves_gives_what_each_request_gives_alone(method):
    lengths = (5, 90, 33, 61)
    made = engine(method)
    names, outputs = [], {}
    for turn, length in enumerate(lengths):
        names.append(add(made, prompt(length, seed=turn), new=6 + 5 * turn))
        for _ in range(3):
            for output in made.step():
                outputs.setdefault(output.request_id, []).append(output)
    for name, later in drain(made).items():
        outputs.setdefault(name, []).extend(later)
    for turn, length in enumerate(lengths):
        assert ids_of(outputs[names[turn]]) == run_alone(method, prompt(length, seed=turn), new=6 + 5 * turn)


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
@pytest.mark.parametrize("method", ["dense", "snapkv", "pyramidkv", "ada_snapkv", "quest", "omnikv"])
def test_the_chunk_size_changes_nothing_where_the_prompt_attends_to_everything(method, chunk):
    tokens = prompt(100, seed=5)
    assert run_alone(method, tokens, new=8, chunk=chunk) == run_alone(method, tokens, new=8, chunk=100)


@pytest.mark.parametrize("method", EVICTING_OR_SELECTING)
def test_a_budget_above_the_length_gives_exactly_dense(method):
    tokens = prompt(70, seed=9)
    large = {"filters": "{0, 2}", "budget": 512} if method == "omnikv" else {"budget": 512}
    assert run_alone(method, tokens, 16, params=large) == run_alone("dense", tokens, 16)


@pytest.mark.parametrize("method", METHODS)
def test_two_requests_in_a_row_leave_nothing_behind(method):
    made = engine(method)
    first = ids_of(drain_one(made, prompt(80, seed=1)))
    second = ids_of(drain_one(made, prompt(50, seed=2)))
    assert first == run_alone(method, prompt(80, seed=1), 8)
    assert second == run_alone(method, prompt(50, seed=2), 8)
    pages = made.stats().pages
    assert pages.free == pages.total and pages.live == 0


def drain_one(made, tokens):
    name = add(made, tokens, 8)
    return drain(made)[name]


@pytest.mark.parametrize("method", METHODS)
def test_a_preempted_request_is_replayed_to_the_same_tokens(method):
    lengths = (60, 64, 50)
    made = engine(method, memory_tokens=256, reserve_tokens=1)
    names = [add(made, prompt(length, seed=n), new=60) for n, length in enumerate(lengths)]
    for _ in range(12):
        made.step()
    victim = made.scheduler.victim()
    made._preempt(victim)
    outputs = drain_with_history(made, names)
    for n, length in enumerate(lengths):
        assert outputs[names[n]] == run_alone(method, prompt(length, seed=n), new=60)
    assert made.stats().preemptions >= 1


def drain_with_history(made, names):
    requests = {name: made._requests[name] for name in names}
    drain(made)
    return {name: request.generated for name, request in requests.items()}


POISON = 201  # a token id that no other prompt has


@pytest.mark.parametrize("method", METHODS)
def test_slots_are_conserved_over_two_thousand_operations(method, monkeypatch):
    generator = random.Random(f"{method} life")
    made = engine(method, memory_tokens=256, max_running=6, reserve_tokens=2)
    plant_failure(made, monkeypatch, lambda ids: bool((ids == POISON).any()))
    live: list[str] = []
    for turn in range(2000):
        action = generator.random()
        if action < 0.2 and len(live) < 8:
            tokens = prompt(generator.choice((1, 3, 9, 40)), seed=turn)
            poisoned = [*tokens, POISON] if generator.random() < 0.1 else tokens
            live.append(add(made, poisoned, new=generator.randint(1, 8), name=f"r{turn}"))
        elif action < 0.25 and live:
            made.abort(live.pop(generator.randrange(len(live))))
        else:
            finished = {output.request_id for output in made.step() if output.finished}
            live = [name for name in live if name not in finished]
        pages = made.stats().pages
        assert pages.free + pages.live + pages.cached == pages.total
    for name in live:
        made.abort(name)
    finished = made.stats().finished
    assert made.stats().pages.live == 0
    assert all(finished[reason] for reason in ("length", "abort", "error")), finished


def plant_failure(made, monkeypatch, fails) -> None:
    """The model's embedding raises for ids [row, token] for which `fails(ids)`."""
    embedding = made.model.module.model.embed_tokens
    forward = embedding.forward

    def explode(ids: torch.Tensor) -> torch.Tensor:
        if fails(ids):
            raise RuntimeError("planted failure")
        return forward(ids)

    monkeypatch.setattr(embedding, "forward", explode)


@pytest.mark.parametrize("method", ["dense", "h2o", "ada_snapkv"])
def test_a_request_that_fails_ends_alone(method, monkeypatch):
    made = engine(method)
    good, bad = add(made, prompt(20, 1), 8), add(made, prompt(20, 2), 8)
    victim = prompt(20, 2)
    plant_failure(made, monkeypatch, lambda ids: ids[0].tolist() == victim)
    outputs = drain(made)
    assert outputs[bad][-1].finish_reason is FinishReason.ERROR and "planted failure" in outputs[bad][-1].error
    monkeypatch.undo()
    assert ids_of(outputs[good]) == run_alone(method, prompt(20, 1), 8)
    assert made.stats().pages.live == 0


def test_a_request_that_can_never_fit_is_refused_with_numbers():
    made = engine("dense", memory_tokens=64)
    with pytest.raises(RequestError, match=r"needs \d+ pages .* has \d+"):
        add(made, prompt(300), 10)
    assert not made.busy


def test_bad_input_is_refused_and_loses_nothing():
    made = engine("h2o")
    for wrong in ([], [10**6], [-1]):
        with pytest.raises(RequestError):
            made.add_request(wrong, SamplingParams())
    with pytest.raises(ValueError, match="budget"):
        made.add_request([1, 2, 3], SamplingParams(), {"budget": 0})
    with pytest.raises(ValueError, match="did you mean"):
        made.add_request([1, 2, 3], SamplingParams(), {"bugdet": 10})
    assert not made.busy
    assert len(ids_of(drain_one(made, prompt(10)))) == 8


def test_an_aborted_request_frees_its_pages_at_once():
    made = engine("quest")
    name = add(made, prompt(80), 50)
    for _ in range(5):
        made.step()
    assert made.stats().pages.live > 0
    assert made.abort(name).finish_reason is FinishReason.ABORT
    assert made.stats().pages.live == 0
    with pytest.raises(KeyError, match=name):
        made.abort(name)


def test_a_share_of_the_prompt_is_resolved_at_admission():
    made = engine("h2o")
    name = made.add_request(prompt(80), SamplingParams(max_tokens=2), {"budget": "25%"})
    assert made.params_of(name)["budget"] == 20
    assert made.params_of(name)["recent"] == 10


def test_decode_goes_on_while_a_long_prompt_is_read():
    made = engine("dense", token_budget=32, memory_tokens=8192)
    short = add(made, prompt(8), 200)
    made.step()
    add(made, prompt(1500, seed=4), 4)
    for _ in range(20):
        assert short in {output.request_id for output in made.step()}


def test_requests_of_one_batch_may_have_their_own_budgets():
    made = engine("snapkv")
    params = {name: value for name, value in made.request_params.items() if name != "budget"}
    names = [made.add_request(prompt(90, seed=1), SamplingParams(max_tokens=8, ignore_eos=True), {**params, "budget": b}) for b in (16, 64)]
    outputs = drain(made)
    for name, budget in zip(names, (16, 64)):
        alone = run_alone("snapkv", prompt(90, seed=1), 8, params={"budget": budget, "window": 8, "kernel": 3})
        assert ids_of(outputs[name]) == alone
        assert outputs[name][-1].usage.tokens_evicted == 90 - budget


@pytest.mark.parametrize("method", ["streamingllm", "h2o", "snapkv", "tova", "pyramidkv", "ada_snapkv"])
def test_evicting_methods_hold_less_than_dense(method):
    made, dense = engine(method), engine("dense")
    tokens = prompt(200, seed=7)
    usage = [drain_one(e, tokens)[-1].usage for e in (made, dense)]
    assert usage[0].kv_bytes < 0.3 * usage[1].kv_bytes
    assert usage[0].tokens_evicted > 150


@pytest.mark.parametrize("method", ["snapkv", "pyramidkv", "ada_snapkv"])
@pytest.mark.parametrize("early", [False, True])
def test_prompts_run_together_where_what_their_chunks_leave_fits_and_wait_where_the_whole_prompts_do_not(method, early):
    made = engine(method, params={**SMALL[method], "evict_in_prefill": early}, memory_tokens=320)
    names = [add(made, prompt(250, seed=seed), 4) for seed in (1, 2)]
    first = made.step()
    assert made.stats().running == (2 if early else 1)
    outputs = drain(made)
    for seed, name in zip((1, 2), names):
        assert outputs[name][-1].usage.preemptions == 0
        assert ids_of([output for output in (*first, *outputs[name]) if output.request_id == name]) == run_alone(method, prompt(250, seed=seed), 4, params={**SMALL[method], "evict_in_prefill": early})


def test_a_lone_request_that_outgrows_the_pools_fails_and_the_engine_goes_on():
    made = engine("dense", memory_tokens=128, reserve_tokens=1)
    large = add(made, prompt(100), 200)
    outputs = drain(made)[large]
    assert outputs[-1].finish_reason is FinishReason.ERROR
    assert "pages" in outputs[-1].error and "memory_tokens" in outputs[-1].error
    assert made.stats().pages.live == 0
    assert ids_of(drain_one(made, prompt(20, seed=3))) == run_alone("dense", prompt(20, seed=3), 8)


def test_an_id_that_a_caller_chose_never_blocks_the_ids_that_the_engine_makes():
    made = engine("dense")
    add(made, prompt(5), 40, name="request-1")
    names = [add(made, prompt(5), 2) for _ in range(3)]
    assert len({*names, "request-1"}) == 4


def test_generate_keeps_no_prompt_when_one_of_them_is_refused():
    made = engine("dense")
    with pytest.raises(RequestError):
        list(made.generate([prompt(5), []]))
    assert not made.busy
