"""Prompt chunks on the device against plain torch in fp64: head widths, dtypes, prefixes; whole models; no plan built after warm-up."""

from __future__ import annotations

import random

import pytest
import torch
from engines import SMALL, add, drain, prompt, tiny_model
from sparsec_runtime.attention.observe import QueryBlock
from sparsec_runtime.engine import Engine
from sparsec_runtime.gpu.cuts import Cuts, reasons_against_cudnn
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.zones import Pieces
from test_decode_graphs import generate, on_cuda

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1.5e-3, torch.float32: 4e-6}
LSE_TOLERANCE = {torch.bfloat16: 2e-3, torch.float16: 2e-3, torch.float32: 1e-5}
CHUNK = 512
LENGTHS = ((1, 0), (100, 0), (129, 1), (512, 0), (300, 1000), (512, 15), (512, 512), (512, 1024 + 512 + 17), (400, 3 * 512), (77, 2048), (512, 9000))


def chunk(queries, tokens, heads, group, channels, dtype):
    """q, K, V; K and V are cut out of whole pages, and what lies behind them is not a number."""
    torch.manual_seed(queries + tokens)
    q = torch.randn(1, queries, heads, group, channels, device="cuda", dtype=dtype)
    pages = -(-tokens // 16) * 16
    keys, values = (torch.randn(1, heads, pages, channels, device="cuda", dtype=dtype) for _ in range(2))
    keys[:, :, tokens:], values[:, :, tokens:] = float("nan"), float("nan")
    return q, keys[:, :, :tokens], values[:, :, :tokens]


def plain(q, keys, values, scale):
    """Output, probs [query, kv_head, group, token] and lse [q_head, query] in fp64."""
    queries, tokens = q.shape[1], keys.shape[2]
    scores = torch.einsum("ihgd,htd->ihgt", q[0].double(), keys[0].double()) * scale
    future = torch.arange(tokens, device="cuda") > (tokens - queries + torch.arange(queries, device="cuda"))[:, None]
    scores = scores.masked_fill(future[:, None, None], float("-inf"))
    probs = scores.softmax(-1)
    return torch.einsum("ihgt,htd->ihgd", probs, values[0].double()), probs, scores.logsumexp(-1).permute(1, 2, 0).flatten(0, 1)


def attention_of(heads, group, channels, dtype, shorter=()):
    from sparsec_runtime.gpu.prefill import ChunkAttention

    device = torch.device("cuda")
    cuts = None if reasons_against_cudnn(channels, dtype, device) else Cuts(CHUNK, 16384, shorter)
    return ChunkAttention(heads * group, heads, channels, dtype, device, cuts)


def error(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("heads", "group", "channels"), [(2, 4, 128), (3, 1, 64), (2, 7, 80), (1, 3, 96), (1, 8, 256)])
def test_chunks_and_their_mass_equal_plain_attention(heads, group, channels, dtype):
    from sparsec_runtime.gpu.prefill import column_mass

    made, scale = attention_of(heads, group, channels, dtype), channels**-0.5
    for queries, prefix in LENGTHS:
        q, keys, values = chunk(queries, queries + prefix, heads, group, channels, dtype)
        out, lse = made(q, Pieces(keys[0]), Pieces(values[0]), scale)
        wanted, probs, wanted_lse = plain(q, keys, values, scale)
        assert out.shape == q.shape and out.dtype == dtype and out.is_contiguous()
        assert error(out[0], wanted) < TOLERANCE[dtype], (queries, prefix)
        assert torch.allclose(lse.double(), wanted_lse, atol=LSE_TOLERANCE[dtype]), (queries, prefix)
        for over_g, expected in (("sum", probs.sum(2)), ("mean", probs.mean(2)), ("max", probs.amax(2))):
            mass = column_mass(q, keys, lse, scale, over_g)
            assert torch.equal(mass, column_mass(q, keys, lse, scale, over_g)), "the same sums in the same order"
            assert error(mass[0], expected.sum(0)) < (1e-5 if dtype == torch.float32 else 2e-3), (over_g, queries, prefix)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("heads", "group", "channels"), [(2, 4, 128), (3, 1, 96), (2, 7, 80), (1, 8, 256)])
def test_what_the_newest_queries_give_equals_plain_attention(heads, group, channels, dtype):
    for queries, prefix in ((1, 0), (32, 0), (32, 3000), (100, 2049), (16, 9000)):
        q, keys, values = chunk(queries, queries + prefix, heads, group, channels, dtype)
        positions = torch.arange(queries + prefix, device="cuda")
        real = torch.ones((1, queries), dtype=torch.bool, device="cuda")
        row_pos = positions.expand(1, heads, -1).contiguous()
        found = [QueryBlock(q, positions[None, prefix:], real, keys, scale=channels**-0.5, row_pos=row_pos).mass("sum") for _ in range(2)]
        _, probs, _ = plain(q, keys, values, channels**-0.5)
        assert torch.equal(*found), "the same sums in the same order"
        assert error(found[0][0], probs.sum(0)) < (1e-5 if dtype == torch.float32 else 2e-3), (queries, prefix)


def test_sixteen_bit_models_of_usual_heads_are_served_by_cudnn():
    device = torch.device("cuda")
    assert reasons_against_cudnn(128, torch.bfloat16, device) == ()
    assert reasons_against_cudnn(80, torch.float16, device) == ()


@pytest.mark.parametrize("shorter", [(), (256,)])
def test_no_prompt_builds_a_plan_after_warm_up(monkeypatch, shorter):
    from sparsec_runtime.gpu import prefill

    asked, real = [], prefill.through_cudnn

    def counted(q, k, v, scale, causal):
        asked.append((q.shape, q.stride(), k.shape, k.stride(), v.stride(), causal))
        return real(q, k, v, scale, causal)

    monkeypatch.setattr(prefill, "through_cudnn", counted)
    made = attention_of(2, 4, 64, torch.bfloat16, shorter)
    made.warm_up()
    built, before = set(asked), len(asked)
    assert len(built) == len(made.cuts.squares) + len(made.cuts.prefixes) * (1 + len(shorter)) <= 2 + 6 * 2
    lengths = random.Random(7)
    for _ in range(50):
        length = lengths.randint(1, 6000)
        starts = [start for start in range(0, length, min((CHUNK, *shorter))) if not shorter or start % CHUNK == 0 or start > 3000]
        for start, end in zip(starts, [*starts[1:], length]):
            q, keys, values = chunk(end - start, end, 2, 4, 64, torch.bfloat16)
            made(q, Pieces(keys[0]), Pieces(values[0]), 0.125)
    assert len(asked) - before > 300 and set(asked) == built


@pytest.mark.parametrize("method", SMALL)
def test_prompts_of_whole_models_give_the_ids_of_the_cpu(method, monkeypatch):
    from sparsec_runtime.gpu import prefill

    calls, masses, attend, mass = [], [], prefill.ChunkAttention.__call__, prefill.column_mass
    monkeypatch.setattr(prefill.ChunkAttention, "__call__", lambda self, *args: (calls.append(1), attend(self, *args))[1])
    monkeypatch.setattr(prefill, "column_mass", lambda *args: (masses.append(1), mass(*args))[1])
    model, lengths = tiny_model(), (1, 31, 32, 33, 100, 257)
    here, _ = generate(method, on_cuda(model), new=4, lengths=lengths, graphs=False)
    assert calls, "no chunk was attended by the kernels"
    assert len(masses) == (len(calls) if method == "h2o" else 0), "every chunk's mass is one kernel"
    assert here == generate(method, model, new=4, lengths=lengths)[0]


def test_a_long_prompt_in_sixteen_bit_gives_the_logits_of_the_masked_path():
    """Over every kind of piece: squares, prefixes of one and more chunks, a short last chunk."""
    model = on_cuda(tiny_model(dtype="bfloat16"))
    kind, kept = load_manager(Compilation.load("dense", model=from_shape(model.shape))), []
    for with_kernels in (True, False):
        made = Engine(kind, model, EngineOptions(chunk=256, memory_tokens=4096, graphs=False))
        made.request_params = {}
        if not with_kernels:
            made.manager.chunk_attention = None
        sample = made._sample
        made._sample = lambda work, logits, sample=sample: (kept.append(logits.clone()), sample(work, logits))[1]
        add(made, prompt(min(1500, model.shape.max_positions - 8), seed=3), 1)
        drain(made)
    assert error(kept[0], kept[1].double()) < 2e-2


def test_rows_that_decode_get_a_token_in_every_step_that_reads_a_chunk(monkeypatch):
    """As on a CPU (tests/runtime/test_prompt_chunks.py), with ids that graphs choose."""
    from sparsec_runtime import chunks

    monkeypatch.setattr(chunks, "LEAST_CHUNK", 16)
    model = on_cuda(tiny_model())
    kind = load_manager(Compilation.load("dense", model=from_shape(model.shape)))
    made = Engine(kind, model, EngineOptions(chunk=64, token_budget=64, memory_tokens=4096, chunk_tflop=1e-9, capture_at_start=False))
    made.request_params = {}
    rows = {add(made, prompt(5, seed=n), 200) for n in range(3)}
    for _ in range(6):
        made.step()
    long = add(made, prompt(300, seed=9), 2)
    steps, done = 0, False
    while not done:
        outputs, steps = made.step(), steps + 1
        done = any(output.request_id == long for output in outputs)
        assert made._pending is None and rows <= {output.request_id for output in outputs if output.token_ids}
    assert steps == -(-300 // 16), "chunks are as short as they become, and a step has one"
