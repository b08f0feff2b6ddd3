"""Residents of the benchmark: made-up ones hold what a real prompt leaves, and the pools are as large as the arithmetic says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sparsec.bench.room import bytes_of, manager_with, pages_of_residents, probe_of, tokens_of
from sparsec.bench.synthetic import fill_pools, open_after_prompt, shuffle_pages
from sparsec.bench.workload import Workload
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager
from sparsec_runtime.models.loading import load_model
from sparsec_runtime.prompts import prefill, random_ids
from sparsec_runtime.step import StepBatch

CASES = [
    ("dense", {}), ("quest", {"budget": "32"}), ("snapkv", {"budget": "40"}), ("h2o", {"budget": "40"}), ("tova", {"budget": "40"}),
    ("streamingllm", {"budget": "40", "interval": "4"}), ("omnikv", {"budget": "32"}), ("pyramidkv", {"budget": "40"}), ("ada_snapkv", {"budget": "40"}),
    ("kivi", {"block": "16", "residual": "16"}), ("kivi", {"block": "16", "residual": "16", "flush": "blocks"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return load_model("tiny-llama", load_format="dummy", dtype="float32")


def made(model, work: Workload, new: int):
    compilation = Compilation.load(work.method, params=work.params, model=from_shape(model.shape))
    method = load_manager(compilation)
    probe = probe_of(method, model)
    params = probe.resolve_params(compilation.dynamic_params, prompt_tokens=work.context)
    pages = pages_of_residents(probe, params, work, new)
    return manager_with(method, model, tokens_of(probe, pages), work.batch, work.chunk), params, bytes_of(probe, pages)


@pytest.mark.parametrize(("method", "params"), CASES)
def test_a_made_up_resident_holds_as_many_rows_as_a_real_prompt_leaves(model, method, params):
    work = Workload(method, params, context=100, batch=2, fill="prompt", chunk=100)
    manager, values, _ = made(model, work, 8)
    fill_pools(manager)
    shuffle_pages(manager)
    real = manager.open("real", values)
    prefill(model, manager, real, random_ids(model, 100, 0), work.chunk)
    made_up = open_after_prompt(manager, "made up", values, 100)
    one, other = manager.sequence(real), manager.sequence(made_up)
    if manager.LAYOUT.scope == "head":
        assert one.rows.sum() == other.rows.sum()
    else:
        np.testing.assert_array_equal(one.rows, other.rows)
        assert all((one.zone_rows[key] == other.zone_rows[key]).all() for key in one.zone_rows)
        assert manager.bytes(real).kv == manager.bytes(made_up).kv
    assert one.length == other.length == 100


@pytest.mark.parametrize(("method", "params"), CASES)
def test_residents_decode_in_the_pools_that_were_planned_for_them(model, method, params):
    work = Workload(method, params, context=100, batch=3)
    manager, values, size = made(model, work, 9)
    fill_pools(manager)
    handles = tuple(open_after_prompt(manager, f"row {row}", values, 100) for row in range(3))
    for step in range(8):
        manager.begin_step(StepBatch(handles, 1, "decode", True, (step,) * 3))
        hidden = model.hidden_states(torch.full((3, 1), 5), torch.full((3, 1), 100 + step), manager)
        manager.finish()
        manager.commit_step()
    assert torch.isfinite(model.logits(hidden)).all()
    held = sum(manager.bytes(handle).kv for handle in handles)
    assert held <= size


def test_pools_of_compressed_residents_are_smaller_than_their_prompts(model):
    dense = made(model, Workload("dense", {}, context=1000, batch=4), 4)[2]
    kept = made(model, Workload("snapkv", {"budget": "100"}, context=1000, batch=4), 4)[2]
    with_prompt = made(model, Workload("snapkv", {"budget": "100"}, context=1000, batch=4, fill="prompt", chunk=1000), 4)[2]
    assert kept < 0.2 * dense
    assert kept < with_prompt < kept + 0.3 * dense


def test_the_bench_decodes_made_up_and_computed_residents_of_different_lengths(model):
    from sparsec.bench.decode import DecodeBench

    work = Workload("quest", {"budget": "32", "dense": "0"}, context=60, batch=2, fill="prompt", chunk=32, warm_up=1, steps=4)
    bench = DecodeBench(work, model, prompts=1, contexts=(60, 40))
    opened = bench._open(prompts=1)
    assert len(opened.ids) == len(opened.handles) == 2
    assert [bench.manager.sequence(handle).length for handle in opened.handles] == [60, 40]
    bench._close(opened.handles)
    with bench.resident() as handles:
        bench.steps(handles, 2)
        assert [bench.manager.sequence(handle).length for handle in handles] == [62, 42]
    assert bench.manager.pages().live == 0
