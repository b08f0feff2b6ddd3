"""Sampling inside a graph at the size of a real vocabulary: the ids of sampler.py, bit for bit, whatever the mates, replay after replay."""

from __future__ import annotations

import pytest
import torch
from engines import SMALL, add, drain, prompt, tiny_model
from sparsec_runtime.engine import Engine
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.pending import joined
from sparsec_runtime.sampler import SamplingParams, sample
from test_decode_graphs import on_cuda

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

ROWS, VOCAB = 64, 151936
KINDS = (
    {}, {"temperature": 0.8}, {"temperature": 1.0, "top_k": 50, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.95}, {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.5, "top_p": 0.9, "min_p": 0.02}, {"temperature": 1.0, "top_k": 2000}, {"temperature": 1.0, "min_p": 0.1}, {"temperature": 30.0, "top_p": 0.99},
    {"repetition_penalty": 1.3, "temperature": 0.9, "top_k": 20, "top_p": 0.8}, {"frequency_penalty": 0.7, "presence_penalty": 0.2},
    {"temperature": 1.0, "top_k": 5000}, {"temperature": 1.0, "top_k": 5000, "top_p": 0.9}, {"temperature": 1.0, "top_k": 40000, "top_p": 0.95},
    {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.0, "top_p": 0.99999}, {"temperature": 3.0, "top_p": 0.5, "min_p": 0.001},
    {"temperature": 100.0, "top_p": 0.6}, {"temperature": 1.0, "top_k": 100000},
)  # fmt: skip


def rows_of(count, kinds=KINDS):
    from sparsec_runtime.gpu.row_sampling import RowSampling

    return [RowSampling(SamplingParams(seed=7 * n - 100, **kinds[n % len(kinds)]), range(n, n + 900), [n, n, 5] * (n % 4)) for n in range(count)]


def captured(logits, rows):
    """A graph of the sampling kernels, its ids [row] and its buffers, as `rows` ask; whoever replays the graph holds on to the buffers."""
    from sparsec_runtime.gpu.row_sampling import draws_of
    from sparsec_runtime.gpu.sampling import SampleBuffers

    buffers, ids = SampleBuffers(len(rows), logits.shape[1], logits.device), torch.zeros(len(rows), dtype=torch.int64, device="cuda")
    penalties = draws_of(rows) == "penalised"
    buffers.set(rows)
    buffers.launch(logits, ids, penalties, {})
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        buffers.launch(logits, ids, penalties, {})
    buffers.set(rows)  # the first launch counted a step
    return graph, ids, buffers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 5.0])
def test_a_replayed_graph_gives_the_ids_of_the_sampler_on_the_cpu_and_here(dtype, spread):
    torch.manual_seed(int(spread))
    logits = (torch.randn(ROWS, VOCAB, device="cuda") * spread).to(dtype)
    rows = rows_of(ROWS)
    graph, ids, _buffers = captured(logits, rows)
    histories = [(list(row.prompt), list(row.generated)) for row in rows]
    for step in range(3):
        graph.replay()
        params, steps = [row.params for row in rows], [len(made) for _, made in histories]
        here, _ = sample(logits, params, histories, steps)
        there, _ = sample(logits.cpu(), params, histories, steps)
        assert torch.equal(ids, here) and torch.equal(ids.cpu(), there), (step, (ids.cpu() != there).nonzero().flatten().tolist())
        for (_, made), token in zip(histories, there.tolist()):
            made.append(token)


def test_a_row_gets_the_same_id_alone_and_in_any_place():
    torch.manual_seed(3)
    logits = torch.randn(ROWS, VOCAB, device="cuda", dtype=torch.bfloat16) * 2
    rows = rows_of(ROWS)
    graph, ids, _buffers = captured(logits, rows)
    graph.replay()
    order = torch.randperm(ROWS).tolist()
    mixed_graph, mixed, _mixed_buffers = captured(logits[order].contiguous(), [rows[n] for n in order])
    mixed_graph.replay()
    assert torch.equal(mixed, ids[order])
    for n in (2, 3, 9):
        lone_graph, lone, _lone_buffers = captured(logits[n : n + 1].contiguous(), [rows[n]])
        lone_graph.replay()
        assert lone[0] == ids[n]


def test_a_graph_serves_other_params_without_another_capture():
    torch.manual_seed(4)
    logits = torch.randn(8, VOCAB, device="cuda")
    from sparsec_runtime.gpu.sampling import SampleBuffers

    buffers, ids = SampleBuffers(8, VOCAB, logits.device), torch.zeros(8, dtype=torch.int64, device="cuda")
    buffers.launch(logits, ids, False, {})
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        buffers.launch(logits, ids, False, {})
    for first in range(3):
        rows = rows_of(8, KINDS[first : first + 6])
        buffers.set(rows)
        graph.replay()
        wanted, _ = sample(logits, [row.params for row in rows], None, [len(row.generated) for row in rows])
        assert torch.equal(ids, wanted)


def test_a_logit_that_is_no_number_gives_minus_1():
    logits = torch.randn(4, VOCAB, device="cuda")
    logits[[0, 1, 2], [0, 77777, VOCAB - 1]] = float("nan")
    rows = rows_of(4, KINDS[:4])
    graph, ids, _buffers = captured(logits, rows)
    graph.replay()
    assert ids[:3].tolist() == [-1] * 3 and ids[3] >= 0


SERVED = (
    (3, {}), (15, {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 1}), (16, {"temperature": 1.1, "top_p": 0.8, "seed": 2}), (17, {"repetition_penalty": 1.3}),
    (41, {"temperature": 0.7, "min_p": 0.05, "frequency_penalty": 0.4, "seed": 3}), (60, {"temperature": 1.0, "seed": 4}),
)  # fmt: skip


@pytest.mark.parametrize("method", ["dense", "h2o", "quest"])
def test_an_engine_in_graphs_gives_the_outputs_of_the_eager_one(method):
    """Ids, text, reasons and usage, with rows that stop before their batch does."""
    model, seen = on_cuda(tiny_model()), []
    compilation = Compilation.load(method, params=SMALL[method], model=from_shape(model.shape))
    for graphs in (True, False):
        made = Engine(load_manager(compilation), model, EngineOptions(chunk=32, memory_tokens=4096, graphs=graphs, debug=True, capture_at_start=False))
        made.request_params = dict(compilation.dynamic_params)
        assert (made.graphs is not None) == graphs
        for n, (length, sampling) in enumerate(SERVED):
            add(made, prompt(length, seed=n), 8 + 3 * n, name=f"row {n}", stop_ids=tuple(range(n, 256, 37)), **sampling)
        whole = {name: joined(outputs) for name, outputs in drain(made).items()}
        seen.append({
            name: (one.token_ids, one.text, one.finish_reason, one.usage.new_tokens, one.usage.kv_bytes, one.usage.kv_bytes_peak, one.usage.tokens_evicted)
            for name, one in whole.items()
        })  # fmt: skip
        assert made.manager.pages().live == 0
    assert seen[0] == seen[1]


def test_each_kernel_of_a_step_is_timed_by_its_name():
    from sparsec_runtime.gpu.kernels.narrow import PASSES

    from sparsec.bench.draws import kernel_seconds, random_logits

    found = kernel_seconds(random_logits(2, VOCAB, torch.device("cuda")), {"temperature": 1.0, "top_p": 0.9})
    assert found["narrow"][1] == PASSES and found["draw"][1] == 1
    assert all(seconds > 0 for seconds, _ in found.values())
