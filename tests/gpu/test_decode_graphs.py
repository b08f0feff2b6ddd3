"""Captured decode steps of whole (tiny, random) models: equal to the eager path token for token, to the CPU, and to themselves beside other rows."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from engines import SMALL, add, drain, ids_of_rows, prompt, tiny_model
from projections import tiles_for
from sparsec_runtime.engine import Engine
from sparsec_runtime.gpu.addresses import MovedTensor
from sparsec_runtime.options import EngineOptions

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

LENGTHS = (3, 15, 16, 17, 41, 60)
IN_GRAPHS = ("dense", "snapkv", "pyramidkv", "ada_snapkv", "quest", "h2o", "streamingllm", "tova", "omnikv", "kivi")


def on_cuda(model):
    """The same weights on the device: random numbers differ between devices, so they are drawn on the CPU."""
    device = torch.device("cuda")
    return replace(model, module=copy.deepcopy(model.module).to(device), device=device, rope=model.rope.to(device))


def engine_of(method, model, **options):
    compilation = Compilation.load(method, params=SMALL[method], model=from_shape(model.shape))
    made = Engine(load_manager(compilation), model, EngineOptions(**{"chunk": 32, "memory_tokens": 4096, "capture_at_start": False, **options}))
    made.request_params = dict(compilation.dynamic_params)
    return made


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
    one = engine_of(method, model, token_budget=32)
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


def logits_beside(method, model, mates):
    """Logits of the first row at each decode step, and how many rows each had."""
    made, seen, sizes = engine_of(method, model, chunk=64), [], []
    run = made.graphs.run

    def recorded(*args):
        ids, logits = run(*args)
        seen.append(logits[0].clone())
        sizes.append(len(logits))
        return ids, logits

    made.graphs.run = recorded
    ids_of_rows(made, (41, *mates), 12)
    return seen, sizes, made


@pytest.mark.parametrize("method", ["dense", "h2o", "quest", "kivi"])
def test_a_row_does_not_depend_on_its_batch_mates(method):
    """Bit by bit, in a batch of as many rows: also where rows are evicted, chosen or coded."""
    model = on_cuda(tiny_model(dtype="bfloat16"))
    one, sizes, made = logits_beside(method, model, (3, 3, 3))
    other, others, _ = logits_beside(method, model, (17, 60, 9))
    assert sizes == others and set(sizes) == {4} and len(one) == 11
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert (made.graphs.bulk_steps > 0) == (method in ("h2o", "kivi"))


def test_sampled_rows_draw_as_on_the_eager_path():
    model = on_cuda(tiny_model())
    options = {"temperature": 0.9, "top_k": 20, "seed": 7}
    assert generate("dense", model, **options)[0] == generate("dense", model, graphs=False, **options)[0]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("method", "most"), [("dense", 10), ("h2o", 11), ("quest", 12), ("omnikv", 13)])
def test_a_step_launches_few_kernels_a_layer(method, most, rows):
    """Ten, and one that adds mass, two that choose pages, or four in two layers of three that list tokens."""
    from torch.profiler import ProfilerActivity, profile

    _, made = generate(method, on_cuda(tiny_model(dtype="bfloat16")), lengths=(5,) * rows, new=8)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        made.graphs.replay(rows)
        torch.cuda.synchronize()
    launched = sum(row.count for row in found.key_averages() if row.self_device_time_total > 0)
    assert 0 < launched <= most * made.model.shape.layers + 8


@pytest.mark.parametrize("method", ["dense", "tova", "omnikv"])
def test_what_was_captured_at_the_start_serves_every_batch(method):
    made = engine_of(method, on_cuda(tiny_model()), capture_at_start=True, max_running=6)
    captured = made.graphs.captures
    assert captured >= 8, "rows 1, 2, 4 and 8, greedy and sampled"
    assert len({bucket.buffers.table.data_ptr() for bucket in made.graphs._buckets.values()}) == 1, "all batch sizes read the same page tables"
    for n, length in enumerate(LENGTHS):
        add(made, prompt(length, seed=n), 4 + n, name=f"row {n}", **({"temperature": 0.8, "top_p": 0.9, "seed": 3} if n % 2 else {}))
    drain(made)
    assert made.graphs.captures == captured, "greedy and sampled"


SAMPLED = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 7}
PENALISED = {**SAMPLED, "repetition_penalty": 1.3, "frequency_penalty": 0.4}


def ids_where(method, model, sampling=None, **tuning):
    """Ids of a decode whose kernels are launched with other sizes or options."""
    made = engine_of(method, model)
    made.graphs.forward = replace(made.graphs.forward, tuning=replace(made.graphs.forward.tuning, **tuning))
    return ids_of_rows(made, LENGTHS, 12, **(sampling or {}))


@pytest.mark.parametrize(
    ("method", "sampling"),
    [*((method, {}) for method in ("dense", "h2o", "quest", "omnikv", "kivi", "streamingllm", "tova")), ("dense", SAMPLED), ("dense", PENALISED)],
    ids=str,
)  # fmt: skip
def test_kernels_that_are_set_up_before_the_last_one_ends_give_the_same_ids(method, sampling):
    """Programmatic dependent launch, which is off by default."""
    model = on_cuda(tiny_model())
    assert ids_where(method, model, sampling, chained=True) == ids_where(method, model, sampling, chained=False)


def test_projections_that_are_set_up_before_the_last_kernel_ends_give_the_same_ids():
    model = on_cuda(tiny_model(dtype="bfloat16"))
    tiles = tiles_for(model.shape, side=32)
    assert ids_where("dense", model, projections=tiles, chained=True) == ids_where("dense", model, projections=tiles, chained=False)


def moved(tensor):
    """The old tensor, which graphs go on to read: the memory must not be another's before the test ends."""
    old = tensor.data
    tensor.data = old.clone()
    return old


@pytest.mark.parametrize("what", ["weight", "buffer"])
@pytest.mark.parametrize("debug", [True, False])
def test_a_tensor_that_moved_is_found_at_the_next_check(what, debug):
    """Before each step of an engine that debugs, else once in so many steps."""
    made = engine_of("dense", on_cuda(tiny_model()), debug=debug)
    assert made.graphs.check_every == (1 if debug else 1000)
    if not debug:
        made.graphs.check_every = 8
    add(made, prompt(5), 40)
    for _ in range(4):
        made.step()
    assert made.graphs._steps == 3, "the prompt gives the first token"
    name, tensor = next(made.model.module.named_parameters()) if what == "weight" else ("attended", made.graphs.buffers_of(1).attended)
    old = moved(tensor)
    for _ in range(0 if debug else 4):  # steps 4 to 7
        made.step()
    with pytest.raises(MovedTensor, match=f"{what} {name} has moved"):
        made.step()
    assert made.graphs._steps == (4 if debug else 8) and old.data_ptr() != tensor.data_ptr()


def test_products_of_fp32_are_not_rounded_to_tf32():
    model = on_cuda(tiny_model())
    generate("dense", model, new=2, lengths=(5,))
    fine = torch.full((64, 64), 1 + 2.0**-20, device="cuda")
    assert torch.equal(fine @ torch.eye(64, device="cuda"), fine)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ValueError, match="rounds products of this float32 model to tf32"):
            engine_of("dense", model)
        assert engine_of("dense", on_cuda(tiny_model(dtype="bfloat16"))).graphs is not None
    finally:
        torch.set_float32_matmul_precision("highest")
