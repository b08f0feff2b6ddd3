"""Ids that reach the host one step late, in interpreter mode: what a caller sees of each request equals the eager engine's."""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import add, drain, engine, ids_of, prompt
from sparsec_runtime.gpu.addresses import CapturedAddresses, MovedTensor
from sparsec_runtime.gpu.graphs import CannotCapture, DecodeGraphs
from sparsec_runtime.pending import joined
from sparsec_runtime.request import FinishReason, RequestError
from sparsec_runtime.sampler import SamplingParams

MODEL = "tiny-qwen2"


def made(kernels, method="dense", **options):
    fresh = engine(method, model=MODEL, **options)
    if kernels:
        fresh.graphs = DecodeGraphs(fresh.model, fresh.manager, pool_tokens=options.get("memory_tokens", 4096), tokens=128)
    return fresh


def seen(outputs):
    """Of each request: its ids, text, logprobs' ids, reason, error and usage but for times."""
    found = {}
    for name, parts in outputs.items():
        whole = joined(parts)
        usage = replace(whole.usage, prefill_seconds=0, decode_seconds=0)
        told = tuple(entry.token_id for part in parts for entry in part.logprobs)
        found[name] = (whole.token_ids, whole.text, told, whole.finish_reason, whole.error, usage)
    return found


def served(rows, kernels, method="dense", **options):
    """Each row: prompt length, new tokens, sampling."""
    one = made(kernels, method, **options)
    for n, (length, new, sampling) in enumerate(rows):
        add(one, prompt(length, seed=n), new, name=f"row {n}", **sampling)
    found = seen(drain(one))
    assert one._pending is None and not one._told and one.manager.pages().live == 0
    return found


def both(rows, method="dense", **options):
    """What is seen of the rows with kernels, after asserting that it is the same without."""
    found = served(rows, True, method, **options)
    assert found == served(rows, False, method, **options)
    return found


SAMPLED = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 4}
PENALISED = {"repetition_penalty": 1.4, "frequency_penalty": 0.5}


def test_greedy_rows_of_several_lengths_end_when_they_should():
    both([(3, 5, {}), (17, 2, {}), (16, 4, {})])


def test_sampled_and_penalised_rows_draw_as_the_eager_engine_does():
    both([(3, 4, {}), (9, 4, SAMPLED), (5, 4, PENALISED), (4, 3, {**SAMPLED, **PENALISED, "min_p": 0.05})])


def test_rows_with_logprobs_or_a_bias_are_sampled_after_the_graph():
    both([(3, 3, {"logprobs": 2}), (5, 3, {"logit_bias": {7: 30.0}}), (4, 3, {})])


@pytest.mark.parametrize(("method", "new"), [("dense", 4), ("h2o", 7)])
def test_a_stop_that_is_found_late_leaves_no_trace(method, new):
    whole = served([(33, new, {}), (15, new, {})], False, method)
    third = whole["row 0"][0][2]
    stopped = both([(33, new, {"stop_ids": (third,)}), (15, new, {})], method)
    assert stopped["row 0"][0] == whole["row 0"][0][: whole["row 0"][0].index(third) + 1]
    assert stopped["row 0"][3] == FinishReason.STOP and stopped["row 1"] == whole["row 1"]


def test_a_stop_string_cuts_the_text_where_it_did():
    text = served([(6, 6, {})], False)["row 0"][1]
    assert len(text) > 3
    stopped = both([(6, 6, {"stop": (text[2:4],)}), (5, 3, {})])
    assert stopped["row 0"][3] == FinishReason.STOP and stopped["row 0"][1] == text[: text.index(text[2:4])]


def test_the_last_token_by_number_costs_no_further_step():
    one = made(kernels=True)
    add(one, prompt(5), 4)
    steps = 0
    while one.busy:
        one.step()
        steps += 1
    assert steps == 4 and one.graphs._steps == 3, "the prompt gives the first token"


def test_a_request_that_joins_later_changes_nothing_for_the_others():
    results = []
    for kernels in (False, True):
        one = made(kernels)
        add(one, prompt(5, seed=0), 6, name="first")
        outputs = {}
        for step in range(40):
            if step == 3:
                add(one, prompt(40, seed=1), 3, name="second", **SAMPLED)
            for output in one.step():
                outputs.setdefault(output.request_id, []).append(output)
        results.append(seen(outputs))
    assert results[0] == results[1]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_abort_gives_what_the_eager_engine_had_given_by_then(steps):
    results = []
    for kernels in (False, True):
        one = made(kernels)
        for n in range(2):
            add(one, prompt(7, seed=n), 6, name=f"row {n}")
        outputs = {"row 0": [], "row 1": []}
        for _ in range(steps):
            for output in one.step():
                outputs[output.request_id].append(output)
        outputs["row 0"].append(one.abort("row 0"))
        for name, rest in drain(one).items():
            outputs[name] += rest
        results.append(seen(outputs))
    assert results[0] == results[1] and results[0]["row 0"][3] == FinishReason.ABORT


def late_stop(length, seed):
    """A stop id of a prompt's greedy ids, which first comes in its second decode step or later, and its place among them."""
    ids = ids_of(drain_alone(prompt(length, seed=seed), 8))
    at = next(n for n in range(2, 7) if ids[n] not in ids[:n])
    return ids[at], at


def drain_alone(tokens, new):
    alone = made(kernels=False)
    add(alone, tokens, new, name="alone")
    return drain(alone)["alone"]


def test_rows_that_all_stop_late_leave_no_ids_behind():
    stop, _ = late_stop(7, seed=0)
    both([(7, 8, {"stop_ids": (stop,)})])


def with_an_end_that_nobody_has_seen():
    """An engine in which the abort of "other" has read the last id of "row", and the outputs of "row" until then."""
    stop, at = late_stop(9, seed=1)
    one = made(kernels=True)
    add(one, prompt(7, seed=0), 8, name="other")
    add(one, prompt(9, seed=1), 8, name="row", stop_ids=(stop,))
    outputs = [output for _ in range(at + 1) for output in one.step() if output.request_id == "row"]
    assert not any(output.finished for output in outputs)
    assert one.abort("other").finish_reason is FinishReason.ABORT
    return one, outputs, at


def test_an_abort_of_a_request_that_another_abort_found_ended_gives_its_end():
    one, outputs, at = with_an_end_that_nobody_has_seen()
    outputs.append(one.abort("row"))
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert ids_of(outputs) == ids_of(drain_alone(prompt(9, seed=1), 8))[: at + 1]
    assert not one.busy and one.manager.pages().live == 0
    with pytest.raises(KeyError, match="row"):
        one.abort("row")


def test_an_id_is_in_use_until_the_end_of_its_request_was_returned():
    one, _, _ = with_an_end_that_nobody_has_seen()
    with pytest.raises(RequestError, match="in use"):
        add(one, prompt(3), 2, name="row")
    assert one.step()[-1].finish_reason is FinishReason.STOP
    add(one, prompt(3), 2, name="row")


def test_who_stops_listening_when_all_rows_have_a_last_id_on_its_way_leaves_nothing():
    stop, at = late_stop(7, seed=0)
    one = made(kernels=True)
    outputs = one.generate([prompt(7, seed=0)] * 2, SamplingParams(max_tokens=8, ignore_eos=True, stop_ids=(stop,)))
    for _ in range(2 * at):  # ids of both before the stop
        next(outputs)
    assert one._pending is not None
    outputs.close()
    assert not one.busy and one.manager.pages().live == 0


def test_prompts_in_chunks_and_rows_of_one_token_come_between():
    stop, _ = late_stop(7, seed=0)
    both([(7, 8, {"stop_ids": (stop,)}), (40, 1, {}), (5, 1, SAMPLED), (33, 3, {})], chunk=16, token_budget=16)


def test_nobody_is_preempted_for_a_page_that_a_last_id_on_its_way_frees():
    stop, at = late_stop(14, seed=1)
    assert at == 2, "the step after the one that chose it needs a second page for both rows"
    found = both([(14, 6, {}), (14, 6, {"stop_ids": (stop,)})], memory_tokens=48, reserve_tokens=1, chunk=16)
    assert found["row 1"][3] is FinishReason.STOP and [row[5].preemptions for row in found.values()] == [0, 0]


def test_rows_that_are_preempted_and_fed_again_give_the_same_ids():
    options = {"memory_tokens": 48, "reserve_tokens": 1, "chunk": 16}
    found = both([(14, 6, {}), (14, 6, {**SAMPLED, "top_p": 1.0})], **options)
    assert found["row 1"][5].preemptions > 0


def test_a_row_whose_logits_are_no_numbers_ends_alone():
    one = made(kernels=True)
    for n in range(2):
        add(one, prompt(7, seed=n), 6, name=f"row {n}")
    outputs = {"row 0": [], "row 1": []}
    for step in range(12):
        for output in one.step():
            outputs[output.request_id].append(output)
        if step == 2:
            sequence = one.manager.sequence(one._requests["row 0"].handle)
            page = int(next(iter(sequence.tables.values())).pages[0, 0])
            heads = one.manager.storage.heads
            one.manager.storage.stores[one.manager.storage.newest_zone, "V"].rows.data[:, page * heads : (page + 1) * heads] = float("nan")
    assert outputs["row 0"][-1].finish_reason == FinishReason.ERROR and "not numbers" in outputs["row 0"][-1].error
    alone = made(kernels=False)
    add(alone, prompt(7, seed=1), 6, name="row 1")
    assert ids_of(outputs["row 1"]) == ids_of(drain(alone)["row 1"])


def test_a_forward_that_fails_ends_nobody_who_can_go_on():
    one = made(kernels=True)
    for n in range(2):
        add(one, prompt(7, seed=n), 5, name=f"row {n}")
    run, calls = one.graphs.run, []

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:  # ids of the first are on their way
            raise RuntimeError("once")
        return run(*args)

    one.graphs.run = failing
    outputs = drain(one)
    alone = made(kernels=False)
    for n in range(2):
        add(alone, prompt(7, seed=n), 5, name=f"row {n}")
    assert seen(outputs) == seen(drain(alone))


def test_a_row_is_not_to_blame_for_a_forward_of_which_the_other_row_ended_late():
    stop, at = late_stop(7, seed=0)
    one = made(kernels=True)
    add(one, prompt(7, seed=0), 8, name="ends", stop_ids=(stop,))
    add(one, prompt(9, seed=1), 8, name="goes on")
    run, calls = one.graphs.run, []

    def failing(*args):
        calls.append(args)
        if len(calls) == at + 1:  # the last id of the first row is on its way
            raise RuntimeError("once")
        return run(*args)

    one.graphs.run = failing
    outputs = drain(one)
    assert len(calls) > at + 1 and outputs["ends"][-1].finish_reason is FinishReason.STOP
    assert outputs["goes on"][-1].finish_reason is FinishReason.LENGTH
    assert ids_of(outputs["goes on"]) == ids_of(drain_alone(prompt(9, seed=1), 8))


def test_a_tensor_that_moved_after_the_capture_is_named():
    one = made(kernels=True)
    add(one, prompt(5), 3)
    drain(one)
    buffers, storage = one.graphs.buffers_of(1), one.manager.storage
    captured = CapturedAddresses.of(one.model, storage, buffers)
    captured.check(one.model, storage, buffers)
    buffers.attended = buffers.attended.clone()
    with pytest.raises(MovedTensor, match="buffer attended has moved"):
        captured.check(one.model, storage, buffers)


def test_a_mixture_of_experts_is_refused_under_graphs_with_the_reason():
    one = made(kernels=False)
    module = copy.copy(one.model.module)
    module.config = copy.copy(module.config)
    module.config.num_local_experts = 8
    with pytest.raises(CannotCapture, match="a mixture of 8 experts: no kernel routes tokens"):
        DecodeGraphs(replace(one.model, module=module), one.manager, pool_tokens=4096)
