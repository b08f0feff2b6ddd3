"""The kernels of prompt chunks in interpreter mode against plain torch, and how chunks are cut for a library that builds a plan per shape."""

from __future__ import annotations

import os
import threading

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from caching import Stream, manager, run
from engines import add, drain, engine, ids_of, prompt
from sparsec_runtime.abi import CacheManager, Layout
from sparsec_runtime.chunks import ChunkSizes
from sparsec_runtime.gpu import prefill as kernels
from sparsec_runtime.gpu.cuts import Cuts, reasons_against_cudnn, reasons_against_plain_prefill
from sparsec_runtime.gpu.prefill import ChunkAttention, column_mass
from sparsec_runtime.zones import Pieces

CPU = torch.device("cpu")
PAGE = 16


def chunk(queries: int, tokens: int, heads: int, group: int, channels: int):
    """q [1, query, kv_head, group, channel]; K, V [1, kv_head, token, channel], cut out of whole pages; what lies behind them is not a number."""
    generator = torch.Generator().manual_seed(queries * 1000 + tokens)
    q = torch.randn(1, queries, heads, group, channels, generator=generator)
    pages = -(-tokens // PAGE) * PAGE
    keys, values = (torch.randn(1, heads, pages, channels, generator=generator) for _ in range(2))
    keys[:, :, tokens:], values[:, :, tokens:] = float("nan"), float("nan")
    return q, keys[:, :, :tokens], values[:, :, :tokens]


def pieces(q, keys, values):
    """As attention takes them."""
    return q, Pieces(keys[0]), Pieces(values[0])


def plain(q, keys, values, scale):
    """Output, probs [1, query, kv_head, group, token] and lse [q_head, query] by torch."""
    queries, tokens = q.shape[1], keys.shape[2]
    scores = torch.einsum("rihgd,rhtd->rihgt", q, keys) * scale
    future = torch.arange(tokens) > (tokens - queries + torch.arange(queries))[:, None]
    scores = scores.masked_fill(future[None, :, None, None], float("-inf"))
    probs = scores.softmax(-1)
    return torch.einsum("rihgt,rhtd->rihgd", probs, values), probs, scores.logsumexp(-1)[0].permute(1, 2, 0).flatten(0, 1)


def attention_of(heads: int, group: int, channels: int, cuts: Cuts | None = None) -> ChunkAttention:
    return ChunkAttention(heads * group, heads, channels, torch.float32, CPU, cuts)


@pytest.mark.parametrize("prefix", [0, 1, PAGE - 1, PAGE, PAGE + 1, 45])
@pytest.mark.parametrize(("queries", "heads", "group", "channels"), [(1, 2, 1, 64), (5, 1, 4, 64), (33, 2, 3, 80), (70, 1, 2, 96)])
def test_a_chunk_over_any_prefix_is_plain_attention(prefix, queries, heads, group, channels):
    q, keys, values = chunk(queries, prefix + queries, heads, group, channels)
    out, lse = attention_of(heads, group, channels)(q, Pieces(keys[0]), Pieces(values[0]), 0.2)
    expected, _, expected_lse = plain(q, keys, values, 0.2)
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(lse, expected_lse, atol=1e-5)


@pytest.mark.parametrize("over_g", ["sum", "mean", "max"])
@pytest.mark.parametrize(("queries", "prefix", "heads", "group"), [(1, 0, 2, 1), (5, 2, 1, 4), (33, 0, 1, 3), (33, 70, 2, 2), (64, 31, 1, 4)])
def test_the_mass_of_a_chunk_is_the_sum_of_its_probabilities(over_g, queries, prefix, heads, group):
    q, keys, values = chunk(queries, prefix + queries, heads, group, 64)
    _, probs, lse = plain(q, keys, values, 0.2)
    found = column_mass(q, keys, lse.contiguous(), 0.2, over_g)
    expected = {"sum": probs.sum(3), "mean": probs.mean(3), "max": probs.amax(3)}[over_g].sum(1)
    assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)


# ---- the cuts ------------------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch):
    """A stand-in that refuses what the real one cannot do, and lists what it was asked for: shapes and strides of q and K, and the mask."""
    seen: list[tuple[object, ...]] = []

    def attend(q, k, v, scale, causal):
        assert not causal or q.shape[2] == k.shape[2], "a bottom-right mask is not the library's"
        assert torch.isfinite(k).all() and torch.isfinite(v).all()
        assert k.stride() == v.stride()
        seen.append((q.shape, q.stride(), k.shape, k.stride(), causal))
        scores = q.unflatten(1, (k.shape[1], -1)) @ k[:, :, None].transpose(-1, -2) * scale
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
        return (scores.softmax(-1) @ v[:, :, None]).flatten(1, 2), scores.logsumexp(-1).flatten(1, 2)

    monkeypatch.setattr(kernels, "through_cudnn", attend)
    return seen


@pytest.mark.parametrize("heads", [1, 2])
def test_no_prompt_brings_a_shape_that_warm_up_did_not(library, heads):
    made = attention_of(heads, 2, 16, Cuts(256, 2048))
    made.warm_up()
    known, asked = set(library), 0
    assert len(known) == 1 + 3, "one square; 1, 2 and 4 chunks"
    for length in (1, 128, 129, 255, 256, 300, 511, 700, 1100):
        for start in range(0, length, 256):
            before = len(library)
            q, keys, values = chunk(min(256, length - start), min(length, start + 256), heads, 2, 16)
            out, lse = made(q, Pieces(keys[0]), Pieces(values[0]), 0.25)
            expected, _, expected_lse = plain(q, keys, values, 0.25)
            assert torch.allclose(out, expected, atol=1e-5) and torch.allclose(lse, expected_lse, atol=1e-5)
            asked += len(library) - before
    assert asked > 10 and set(library) == known


def test_a_prefix_of_no_whole_chunks_leaves_a_rest_to_the_kernel(library):
    q, keys, values = chunk(200, 200 + 256 * 3 + 17, 1, 2, 16)
    made = attention_of(1, 2, 16, Cuts(256, 4096))
    made.warm_up()
    library.clear()
    out, lse = made(q, Pieces(keys[0]), Pieces(values[0]), 0.25)
    assert [shape[2][2] for shape in library] == [512, 256, 256]
    expected, _, expected_lse = plain(q, keys, values, 0.25)
    assert torch.allclose(out, expected, atol=1e-5) and torch.allclose(lse, expected_lse, atol=1e-5)


def test_chunks_that_are_halved_far_into_a_prompt_bring_no_shape_that_warm_up_did_not(library):
    sizes = ChunkSizes(1024, limit=1e6, per_token=900, per_pair=1, fixed=False)
    ends, ahead = [], 0
    while ahead < 4000:
        ends.append((ahead, sizes.end_of(ahead, 1 << 20)))
        ahead = ends[-1][1]
    assert [end - start for start, end in ends] == [512] * 8, "which the case must have"
    made = attention_of(1, 2, 16, Cuts(1024, 4096, sizes.shorter(4000)))
    made.warm_up()
    known = set(library)
    assert len(known) == 3 + 2 * 2, "squares; 1 and 2 chunks for each size"
    for start, end in [*ends, (512, 600), (1024, 1300), (2048, 2048 + 257), (3072, 3584)]:
        before = len(library)
        q, keys, values = chunk(end - start, end, 1, 2, 16)
        out, lse = made(q, Pieces(keys[0]), Pieces(values[0]), 0.25)
        expected, _, expected_lse = plain(q, keys, values, 0.25)
        assert torch.allclose(out, expected, atol=1e-5) and torch.allclose(lse, expected_lse, atol=1e-5)
        pieces = [shape[2][2] for shape in library[before:] if not shape[4]]
        assert sum(pieces) == (start // 1024 * 1024 if end - start > 256 else 0), "what is left is the kernel's"
    assert set(library) == known


def test_plans_are_built_on_each_thread_that_attends(library):
    made = attention_of(1, 1, 16, Cuts(256, 256))
    made.warm_up()
    made.warm_up()
    worker = threading.Thread(target=lambda: made(*pieces(*chunk(200, 200, 1, 1, 16)), 0.25))
    worker.start()
    worker.join()
    made(*pieces(*chunk(200, 200, 1, 1, 16)), 0.25)
    assert len(library) == 1 + 1 + (1 + 1) + 1


@pytest.mark.parametrize(
    ("size", "tokens", "squares", "prefixes"),
    [
        (32, 4096, (), ()),
        (512, 2048, (256, 512), (512, 1024)),
        (1000, 3000, (256, 512, 1024), (1000, 2000)),
        (8192, 1 << 20, (256, 512, 1024, 2048, 4096, 8192), tuple(8192 << n for n in range(6))),
    ],
)
def test_the_shapes_of_a_chunk_size(size, tokens, squares, prefixes):
    cuts = Cuts(size, tokens)
    assert (cuts.squares, cuts.prefixes) == (squares, prefixes)


def test_a_prefix_is_cut_into_the_largest_pieces_first_and_only_for_chunks_that_nearly_fill_one():
    cuts = Cuts(1000, 20_000)
    assert cuts.pieces_of(15_300, 1000) == (8000, 4000, 2000, 1000)
    assert cuts.pieces_of(900, 1000) == ()
    assert cuts.pieces_of(8000, 500) == () and cuts.pieces_of(8000, 501) == (8000,)
    assert [Cuts(1000, 20_000, (500, 250)).padded(n) for n in (125, 126, 250, 251, 501, 1000, 1001)] == [None, 250, 250, 500, 1000, 1000, None]
    assert cuts.pieces_of(8000, 1001) == () and cuts.square_of(1025) is None
    assert [cuts.square_of(n) for n in (128, 129, 256, 257, 1000)] == [None, 256, 256, 512, 1024]


def test_what_cudnn_does_not_serve_says_why():
    assert reasons_against_cudnn(128, torch.bfloat16, CPU) == ("the model lies on cpu",)
    reasons = reasons_against_cudnn(256, torch.float32, CPU)
    assert any("float32" in reason for reason in reasons) and any("heads of 256 channels" in reason for reason in reasons)


def test_methods_whose_chunks_are_masked_say_why():
    choosing = type("Choosing", (CacheManager,), {"build_prefill_selection": lambda self, view: None})
    ragged = type("Ragged", (CacheManager,), {"LAYOUT": Layout(scope="head", evicts=True), "finish_step": lambda self, view: None})
    assert reasons_against_plain_prefill(CacheManager) == ()
    assert reasons_against_plain_prefill(choosing) == ("build_prefill_selection chooses the rows that a chunk sees",)
    assert reasons_against_plain_prefill(ragged) == ("heads may hold different counts of rows after a chunk",)


# ---- in a manager --------------------------------------------------------------------------------


class Selecting(CacheManager):
    """Chooses rows in chunks that end beyond row 32."""

    def build_prefill_selection(self, view):
        if int(view.len[0]) > 32:
            view.attend((view.order[:, None, :, None] % 2 == 0) | (view.order[:, None, :, None] > 30))


@pytest.mark.parametrize("kind", [CacheManager, Selecting])
def test_a_manager_attends_plain_chunks_with_kernels_and_masked_ones_in_torch(kind):
    outs = []
    for with_kernels in (False, True):
        cache, calls = manager(kind), []
        if with_kernels:
            made = attention_of(2, 2, 8)
            cache.chunk_attention = lambda *args, made=made, calls=calls: (calls.append(1), made(*args))[1]
        outs.append(run(cache, Stream.random(cache, 50, 1), 3, 16))
    assert torch.allclose(*outs, atol=1e-5)
    assert len(calls) == 3 * (4 if kind is CacheManager else 2), "layers times chunks"


@pytest.mark.parametrize("over_g", ["sum", "mean", "max"])
def test_a_hook_is_given_the_mass_of_the_kernel_after_a_plain_chunk_alone(monkeypatch, over_g):
    calls, real = [], kernels.column_mass
    monkeypatch.setattr(kernels, "column_mass", lambda *args: (calls.append(1), real(*args))[1])
    found: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for with_kernels, masses in found.items():
        hook = lambda self, view, masses=masses: masses.append(view.mass(over_g))  # noqa: E731
        cache = manager(type("Kind", (Selecting,), {"after_prefill_attention": hook, "after_decode_attention": hook}))
        if with_kernels:
            cache.chunk_attention = attention_of(2, 2, 8)
        run(cache, Stream.random(cache, 50, 1), 3, 16)
    assert len(calls) == 3 * 2, "layers times chunks that are not masked"
    assert len(found[True]) == 3 * (4 + 3)
    assert all(torch.allclose(here, there, atol=1e-5) for here, there in zip(*found.values()))


@pytest.mark.parametrize("method", ["dense", "h2o", "kivi", "streamingllm"])
def test_whole_models_give_the_ids_of_the_torch_path(method):
    found = []
    for with_kernels in (False, True):
        made = engine(method)
        shape = made.model.shape
        if with_kernels:
            made.manager.chunk_attention = attention_of(shape.kv_heads, shape.q_heads // shape.kv_heads, shape.head_dim)
        for n, length in enumerate((1, 33, 70)):
            add(made, prompt(length, seed=n), 3, name=f"row {n}")
        found.append({name: ids_of(outputs) for name, outputs in drain(made).items()})
    assert found[0] == found[1]
