"""Chunks that shrink far into a prompt, through whole engines: what they change (nothing), where they do not shrink, and what decoding rows get meanwhile."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import METHODS, SMALL, add, drain, engine, ids_of, prompt, run_alone, tiny_model, with_kernels
from sparsec_runtime import chunks
from sparsec_runtime.chunks import chunk_sizes
from sparsec_runtime.options import EngineOptions

LENGTH = 150
DEPENDENT = ("kivi", "streamingllm")  # their spec lets what they keep depend on the chunk size
EARLY = ("h2o", "snapkv", "pyramidkv", "ada_snapkv", "tova")


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "LEAST_CHUNK", 4)


def limit_of(chunk: int = 32) -> float:
    """chunk_tflop by which the tiny model's first chunk is whole and later ones are halved."""
    sizes = chunk_sizes({}, tiny_model().shape, EngineOptions(chunk=chunk))
    return sizes.work(0, chunk) * 1.04 / 1e12


def watched(method: str, **options):
    """An engine, and the (request, start, tokens) of each chunk that it runs, with the pages that live beside those that were reserved."""
    made, seen = engine(method, **{"chunk_tflop": limit_of(), **options}), []
    run = made._run

    def spy(work):
        if work.prefill:
            seen.append((work.requests[0].request_id, work.requests[0].computed, work.tokens))
        outputs = run(work)
        assert made.manager.pages().live <= sum(request.reserved for request in made.scheduler.running) or not made.scheduler.running
        return outputs

    made._run = spy
    return made, seen


def sizes(seen) -> list[int]:
    return [tokens for _, _, tokens in seen]


@pytest.mark.parametrize("method", [method for method in METHODS if method not in DEPENDENT])
def test_smaller_chunks_give_the_same_ids_and_stay_within_what_was_reserved(method):
    made, seen = watched(method)
    name = add(made, prompt(LENGTH, seed=2), 8)
    outputs = drain(made)[name]
    assert ids_of(outputs) == run_alone(method, prompt(LENGTH, seed=2), 8)
    assert sizes(seen)[0] == 32 and set(sizes(seen)[1:-1]) == {16} and sum(sizes(seen)) == LENGTH
    assert outputs[-1].usage.preemptions == 0 and made.manager.pages().live == 0


@pytest.mark.parametrize(("method", "params"), [*((method, {}) for method in DEPENDENT), *((method, {"evict_in_prefill": True}) for method in EARLY)])
def test_where_results_depend_on_the_chunk_size_it_never_changes(method, params):
    made, seen = watched(method, params={**SMALL[method], **params})
    add(made, prompt(LENGTH), 2)
    drain(made)
    assert sizes(seen) == [32, 32, 32, 32, 22]


def test_mates_change_no_chunk_of_a_prompt_and_no_bit_of_its_ids():
    alone, seen_alone = watched("h2o")
    add(alone, prompt(LENGTH, seed=7), 6, name="long")
    expected = ids_of(drain(alone)["long"])
    made, seen = watched("h2o")
    for n in range(3):
        add(made, prompt(9, seed=n), 40, name=f"mate {n}")
    made.step()
    add(made, prompt(LENGTH, seed=7), 6, name="long")
    add(made, prompt(70, seed=8), 6, name="other")
    assert ids_of(drain(made)["long"]) == expected
    assert [entry for entry in seen if entry[0] == "long"] == seen_alone


@pytest.mark.parametrize("kernels", [False, True])
def test_every_row_that_decodes_gets_a_token_in_each_step_that_reads_a_prompt(kernels):
    made, seen = watched("dense", token_budget=64)
    if kernels:
        with_kernels(made, tokens=256)
    rows = {add(made, prompt(5, seed=n), 100) for n in range(2)}
    for _ in range(4):
        made.step()
    add(made, prompt(LENGTH, seed=5), 2, name="long")
    seen.clear()
    for _ in range(30):
        before, begun = len(seen), {name: len(made._requests[name].generated) for name in rows}
        outputs = made.step()
        read = seen[before:]
        if not read:
            break
        assert made.scheduler.chunks.work(read[0][1], read[-1][1] + read[-1][2]) <= made.scheduler.chunks.limit
        told = {name: len(ids_of([output for output in outputs if output.request_id == name])) for name in rows}
        assert all(told.values()) and all(len(made._requests[name].generated) == begun[name] + told[name] for name in rows)
        assert made._pending is None, "ids of this step would wait for the next chunk"
    assert len(seen) > 8 and sum(sizes(seen)) == LENGTH
