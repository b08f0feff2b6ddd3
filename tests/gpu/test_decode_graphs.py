"""Captured decode steps of whole (tiny, random) models: equal to the eager path token for token, to the CPU, and to themselves beside other rows."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from engines import SMALL, add, drain, ids_of_rows, prompt, tiny_model
from sparsec_runtime.engine import Engine
from sparsec_runtime.options import EngineOptions

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

LENGTHS = (3, 15, 16, 17, 41, 60)
IN_GRAPHS = ("dense", "snapkv", "pyramidkv", "ada_snapkv", "quest", "h2o", "streamingllm", "tova", "omnikv", "kivi")


def on_cuda(model):
    """The same weights on the device: random numbers differ between devices, so they are drawn on the CPU."""
    device = torch.device("cuda")
    return replace(model, module=copy.deepcopy(model.module).to(device), device=device, rope=model.rope.to(device))


def generate(method, model, new=12, lengths=LENGTHS, graphs=True, params=None, **sampling):
    compilation = Compilation.load(method, params={**SMALL[method], **(params or {})}, model=from_shape(model.shape))
    made = Engine(load_manager(compilation), model, EngineOptions(chunk=32, memory_tokens=4096, graphs=graphs, capture_at_start=False))
    made.request_params = dict(compilation.dynamic_params)
    return ids_of_rows(made, lengths, new, **sampling), made


@pytest.mark.parametrize("method", IN_GRAPHS)
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_graphs_give_the_ids_of_the_eager_path_and_of_the_cpu(method, name):
    model = tiny_model(name)
    here = on_cuda(model)
    in_graphs, made = generate(method, here)
    assert made.graphs is not None, made.eager_because
    assert in_graphs == generate(method, here, graphs=False)[0]
    assert in_graphs == generate(method, model)[0]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_positions_counted_anew_give_the_ids_of_the_eager_path_and_of_the_cpu(name):
    model, params = tiny_model(name), {"positions": "cache"}
    in_graphs, made = generate("h2o", on_cuda(model), params=params)
    assert made.graphs is not None and made.graphs.bulk_steps > 0, made.eager_because
    assert in_graphs == generate("h2o", on_cuda(model), graphs=False, params=params)[0] == generate("h2o", model, params=params)[0]


@pytest.mark.parametrize("method", ["dense", "snapkv", "quest", "omnikv"])
def test_a_step_with_a_chunk_and_rows_that_decode_waits_for_its_ids_alone(method):
    model = on_cuda(tiny_model())
    compilation = Compilation.load(method, params=SMALL[method], model=from_shape(model.shape))
    options = EngineOptions(chunk=32, token_budget=32, memory_tokens=4096, capture_at_start=False)
    one = Engine(load_manager(compilation), model, options)
    one.request_params = dict(compilation.dynamic_params)
    for n in range(2):
        add(one, prompt(20, seed=n), 24, name=f"row {n}")
    for _ in range(6):
        one.step()
    add(one, prompt(150, seed=5), 4, name="long")
    one.step()  # what is made once: plans, tables of the new request
    torch.cuda.set_sync_debug_mode("error")
    try:
        while one.progress("long") < 128:
            one.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    outputs = drain(one)
    assert len([token for output in outputs["long"] for token in output.token_ids]) == 4
    usage = outputs["long"][-1].usage
    assert usage.prefill_seconds > 0 and usage.decode_seconds > 0


def test_a_choice_without_kernels_decodes_eagerly_and_says_why():
    params = {"heads": "query_head"}
    found, made = generate("quest", on_cuda(tiny_model()), new=4, params=params)
    assert made.graphs is None and "build_decode_selection" in made.eager_because
    assert found == generate("quest", tiny_model(), new=4, params=params)[0]


def test_a_row_does_not_depend_on_its_batch_mates():
    model = on_cuda(tiny_model(dtype="bfloat16"))
    alone, _ = generate("dense", model, lengths=(41, 3, 3, 3))
    crowded, _ = generate("dense", model, lengths=(41, 17, 60, 9))
    assert alone["row 0"] == crowded["row 0"]


def test_sampled_rows_draw_as_on_the_eager_path():
    model = on_cuda(tiny_model())
    options = {"temperature": 0.9, "top_k": 20, "seed": 7}
    assert generate("dense", model, **options)[0] == generate("dense", model, graphs=False, **options)[0]


def test_a_dense_step_launches_at_most_ten_kernels_a_layer():
    from torch.profiler import ProfilerActivity, profile

    _, made = generate("dense", on_cuda(tiny_model(dtype="bfloat16")), lengths=(5,), new=3)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        made.graphs.replay(1)
        torch.cuda.synchronize()
    launched = sum(row.count for row in found.key_averages() if row.self_device_time_total > 0)
    assert 0 < launched <= 10 * made.model.shape.layers + 8


@pytest.mark.parametrize("method", ["dense", "tova", "omnikv"])
def test_what_was_captured_at_the_start_serves_every_batch(method):
    model = on_cuda(tiny_model())
    compilation = Compilation.load(method, params=SMALL[method], model=from_shape(model.shape))
    made = Engine(load_manager(compilation), model, EngineOptions(chunk=32, memory_tokens=4096, max_running=6))
    made.request_params = dict(compilation.dynamic_params)
    captured = made.graphs.captures
    assert captured >= 8, "rows 1, 2, 4 and 8, greedy and sampled"
    assert len({bucket.buffers.table.data_ptr() for bucket in made.graphs._buckets.values()}) == 1, "all batch sizes read the same page tables"
    for n, length in enumerate(LENGTHS):
        add(made, prompt(length, seed=n), 4 + n, name=f"row {n}", **({"temperature": 0.8, "top_p": 0.9, "seed": 3} if n % 2 else {}))
    drain(made)
    assert made.graphs.captures == captured, "greedy and sampled"


@pytest.mark.parametrize("method", ["dense", "h2o", "quest", "omnikv"])
def test_kernels_that_are_set_up_before_the_last_one_ends_give_the_same_ids(method):
    """Programmatic dependent launch, which is off by default."""
    model = on_cuda(tiny_model())
    plain, _ = generate(method, model)
    compilation = Compilation.load(method, params=SMALL[method], model=from_shape(model.shape))
    made = Engine(load_manager(compilation), model, EngineOptions(chunk=32, memory_tokens=4096, capture_at_start=False))
    made.graphs.forward = replace(made.graphs.forward, tuning=replace(made.graphs.forward.tuning, chained=True))
    made.request_params = dict(compilation.dynamic_params)
    assert ids_of_rows(made, LENGTHS, 12) == plain
