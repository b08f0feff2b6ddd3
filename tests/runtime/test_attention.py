"""Attention over paged rows against plain tensors: dense, selected, evicted, re-counted, batched, permuted."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from caching import ROPE, Stream, forward, manager, prefill, run
from sparsec_runtime.abi import CacheManager, Layout, ops


def reference(stream, total, mask=None, ranks=None):
    """[layer, token, q_head, channel] by plain attention over the first `total` tokens."""
    cos, sin = ROPE.cos_sin(torch.arange(total))
    q, k = (ROPE.rotate(x[:, :total], cos, sin).transpose(1, 2) for x in (stream.q, stream.k))
    mask = torch.ones(total, total).tril().bool() if mask is None else mask
    out = F.scaled_dot_product_attention(q, k, stream.v[:, :total].transpose(1, 2), attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


class Dense(CacheManager):
    pass


class Observing(CacheManager):
    """Reads every score and keeps everything: its output must be dense's, bit for bit."""

    LAYOUT = Layout(scope="head", page_size=8, ring=lambda params, model: 3, evicts=True, observes=True)

    def after_prefill_attention(self, view):
        for block in view.blocks():
            assert torch.allclose(block.probs.sum(-1), torch.ones(()))

    after_decode_attention = after_prefill_attention

    def build_decode_selection(self, view):
        view.attend(view.visible[:, :, :, None])

    build_prefill_selection = build_decode_selection

    def finish_step(self, view):
        view.evict(view.valid)


class Sinks(CacheManager):
    LAYOUT = Layout(position="rank", page_size=4, evicts=True)

    def finish_step(self, view):
        view.evict(ops.sink(view.valid, 2) | ops.recent(view.valid, 6))


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("scope", ["shared", "layer", "head"])
def test_attention_over_pages_is_plain_attention(scope, chunk):
    cache = manager(type("Kind", (Dense,), {"LAYOUT": Layout(scope=scope)}))
    stream = Stream.random(cache, 50, 1)
    assert torch.allclose(run(cache, stream, 6, chunk), reference(stream, 56), atol=1e-5)


def test_a_long_chunk_is_attended_in_blocks_of_queries():
    cache = manager(Dense)
    stream = Stream.random(cache, 300, 1)
    assert torch.allclose(run(cache, stream, 1, 300), reference(stream, 301), atol=1e-5)


def test_observing_and_selecting_everything_changes_no_bit():
    outs = []
    for kind in (Dense, Observing):
        cache = manager(kind)
        outs.append(run(cache, Stream.random(cache, 150, 3), 5, 64))
    assert torch.equal(*outs)


def test_a_batch_of_ragged_rows_gives_what_each_row_gives_alone():
    cache = manager(Observing)
    streams = [Stream.random(cache, length, seed) for seed, length in enumerate((40, 3, 17))]
    for stream in streams:
        prefill(cache, stream)
    together = torch.stack([forward(cache, streams) for _ in range(5)], dim=3)[:, :, 0]
    for seed, stream in enumerate(streams):
        alone = manager(Observing)
        out = run(alone, Stream.random(alone, stream.prompt, seed), 5)[:, stream.prompt :]
        assert torch.equal(together[seed], out)


def test_only_selected_rows_are_read():
    def select(self, view):
        view.attend((ops.sink(view.visible, 1) | ops.recent(view.visible, 4))[:, :, :, None])

    cache = manager(type("Kind", (CacheManager,), {"build_prefill_selection": select, "build_decode_selection": select}))
    stream = Stream.random(cache, 150, 2)
    distance = torch.arange(153)[:, None] - torch.arange(153)
    mask = (distance >= 0) & ((distance < 4) | (torch.arange(153) == 0))
    assert torch.allclose(run(cache, stream, 3, 150), reference(stream, 153, mask), atol=1e-5)


def test_a_selection_may_differ_per_query_head_and_where_a_row_does_not_fire_it_reads_everything():
    def select(self, view):
        mask = view.visible[:, :, :, None].expand(-1, -1, 2, 2, -1).clone()
        mask[:, :, 0, 1, :5] = False
        view.attend(mask, when=view.len > 30)

    cache = manager(type("Kind", (CacheManager,), {"build_decode_selection": select}))
    short, long = Stream.random(cache, 20, 1), Stream.random(cache, 40, 2)
    for stream in (short, long):
        prefill(cache, stream)
    out = forward(cache, [short, long])
    assert torch.allclose(out[0], reference(short, 21)[:, -1:], atol=1e-5)
    expected = reference(long, 41)[:, -1:]
    assert torch.allclose(out[1][:, :, [0, 2, 3]], expected[:, :, [0, 2, 3]], atol=1e-5)
    assert not torch.allclose(out[1][:, :, 1], expected[:, :, 1], atol=1e-3)


def test_rank_positions_are_recounted_for_keys_and_queries():
    cache = manager(Sinks)
    stream = Stream.random(cache, 12, 4)
    forward(cache, [stream], 12)
    out = forward(cache, [stream])[0]
    held = [0, 1, *range(6, 13)]
    cos, sin = ROPE.cos_sin(torch.arange(len(held)))
    keys = ROPE.rotate(stream.k[:, held], cos, sin).transpose(1, 2)
    query = ROPE.rotate(stream.q[:, 12:13], cos[-1:], sin[-1:]).transpose(1, 2)
    expected = F.scaled_dot_product_attention(query, keys, stream.v[:, held].transpose(1, 2), enable_gqa=True).transpose(1, 2)
    assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("scope", ["shared", "layer", "head"])
def test_permuting_physical_pages_changes_no_bit(scope):
    kind = type("Kind", (Sinks,), {"LAYOUT": Layout(scope=scope, page_size=4, evicts=True)})
    outs = []
    for seed in (0, 1):
        cache = manager(kind)
        torch.manual_seed(seed)
        for stream in cache.storage.streams.values():
            stream.pool.shuffle(np.random.default_rng(seed))
        streams = [Stream.random(cache, length, n) for n, length in enumerate((40, 9))]
        outs.append([prefill(cache, stream) for stream in streams] + [forward(cache, streams) for _ in range(10)])
    assert all(torch.equal(a, b) for a, b in zip(*outs))


def test_a_neighbour_whose_values_are_not_numbers_does_no_harm():
    cache = manager(Dense)
    poisoned = Stream.random(cache, 20, 1)
    poisoned.k[:], poisoned.v[:] = float("nan"), float("inf")
    prefill(cache, poisoned)
    cache.close(poisoned.handle)
    stream, other = Stream.random(cache, 21, 2), Stream.random(cache, 50, 3)
    assert torch.allclose(run(cache, stream, 3), reference(stream, 24), atol=1e-5)
    prefill(cache, other)
    assert torch.isfinite(forward(cache, [stream, other])).all()


def test_values_in_bfloat16_are_attended_in_bfloat16():
    cache = manager(Dense, dtype=torch.bfloat16)
    stream = Stream.random(cache, 30, 1)
    stream.q, stream.k, stream.v = (x.bfloat16() for x in (stream.q, stream.k, stream.v))
    out = run(cache, stream, 2)
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out.float(), reference(stream, 32).float(), atol=3e-2)
