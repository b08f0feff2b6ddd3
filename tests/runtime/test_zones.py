"""Stored rows against plain Python lists, in every table scope, under random steps, evictions, moves, failures and departures."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from caching import SHAPE, Stream, forward, manager, row_data, stored
from sparsec_runtime.abi import CacheManager, Codec, Layout, StateLayout, ZoneLayout, ops
from sparsec_runtime.codecs import dequantise, quantise
from sparsec_runtime.memory import OutOfPages

HEADS = [(layer, head) for layer in range(SHAPE.layers) for head in range(SHAPE.kv_heads)]
TAG = StateLayout("tag", ("t", "h"), "f32", -1.0)


class Scripted(CacheManager):
    """Evicts what `script[request]` says: kept row numbers per (layer, head). Tags each row with its position, once."""

    script: dict[str, dict[tuple[int, int], list[int]]]

    def kv_write(self, view):
        tag = view.state("tag")
        view.set_state("tag", torch.where(tag < 0, view.pos.float(), tag))

    def finish_step(self, view):
        keep = view.valid.expand(*view.host_rows.shape, view.tokens).clone()
        for row, (sequence, layer) in enumerate(zip(view._step.sequences, view.layer.tolist())):
            for head in range(SHAPE.kv_heads):
                kept = self.script.get(sequence.request_id, {}).get((layer, head))
                if kept is not None:
                    keep[row, head] = False
                    keep[row, head, kept] = True
        view.evict(keep)


def scripted(scope, **layout):
    kind = type("Kind", (Scripted,), {"LAYOUT": Layout(scope=scope, position="rank", page_size=4, evicts=True, states=(TAG,), **layout)})
    cache = manager(kind, tokens=200)
    cache.script = {}
    return cache


def draw_kept(chance, scope, rows, alike=False):
    """Rows to keep per (layer, head), with counts as equal as the scope wants; alike: the same rows wherever counts are equal."""
    shared = chance.randint(1, min(rows.values()))
    per_layer = {layer: chance.randint(1, min(rows[layer, head] for head in range(SHAPE.kv_heads))) for layer in range(SHAPE.layers)}
    kept = {}
    for layer, head in HEADS:
        held = rows[layer, head]
        count = {"shared": shared, "layer": per_layer[layer], "head": chance.randint(1, held)}[scope]
        like = (0, 0) if scope == "shared" else (layer, 0)
        kept[layer, head] = kept[like] if alike and scope != "head" and like in kept else sorted(chance.sample(range(held), count))
    return kept


class Model:
    """Token numbers of each (layer, head), in order."""

    def __init__(self):
        self.tokens = {key: [] for key in HEADS}

    def add(self, first, count):
        for held in self.tokens.values():
            held.extend(range(first, first + count))

    def keep(self, kept):
        self.tokens = {key: [held[n] for n in kept[key]] for key, held in self.tokens.items()}

    def rows(self):
        return {key: len(held) for key, held in self.tokens.items()}


def check(cache, stream, model, zones=("main",)):
    for part, source in (("K", stream.k), ("V", stream.v)):
        pieces = [stored(cache, stream.handle, zone, part) for zone in zones]
        for (layer, head), held in model.tokens.items():
            found = torch.cat([piece[layer][head] for piece in pieces])
            assert torch.equal(found, source[layer, held, head]), (part, layer, head)
    positions = row_data(cache, stream.handle, cache.storage.positions)
    tags = row_data(cache, stream.handle, cache.storage.token_states["tag"][1])
    for (layer, head), held in model.tokens.items():
        assert positions[layer][head] == held and tags[layer][head] == held


def live_pages(cache):
    return {name: stream.pool.live for name, stream in cache.storage.streams.items()}


def random_life(cache, scope, seed, zones=("main",), steps=60):
    """Random joins, chunks, decode batches, evictions, rollbacks, leaves; every request is checked after every step."""
    chance, running = random.Random(seed), []
    for n in range(steps):
        if len(running) < 4 and chance.random() < 0.4:
            stream = Stream.random(cache, chance.randint(1, 30), seed * 1000 + n)
            running.append((stream, Model()))
        if not running:
            continue
        prompts = [entry for entry in running if entry[0].done < entry[0].prompt]
        decodes = [entry for entry in running if entry not in prompts]
        if prompts and (not decodes or chance.random() < 0.5):
            batch = [chance.choice(prompts)]
            tokens = min(chance.randint(1, 9), batch[0][0].prompt - batch[0][0].done)
        else:
            batch, tokens = chance.sample(decodes, chance.randint(1, len(decodes))), 1
        step(cache, scope, chance, batch, tokens)
        for stream, model in running:
            check(cache, stream, model, zones)
        if chance.random() < 0.1:
            stream, _ = running.pop(chance.randrange(len(running)))
            cache.close(stream.handle)
    for stream, _ in running:
        cache.close(stream.handle)
    assert set(live_pages(cache).values()) == {0}


def step(cache, scope, chance, batch, tokens):
    cache.script, plans = {}, {}
    for stream, model in batch:
        if chance.random() < 0.4:
            rows = {key: held + tokens for key, held in model.rows().items()}
            plans[stream.handle] = cache.script[cache._sequences[stream.handle].request_id] = draw_kept(chance, scope, rows, alike=len(cache.storage.zone_names) > 1)
    before = live_pages(cache)
    try:
        if chance.random() < 0.15:
            forward(cache, [stream for stream, _ in batch], tokens, commit=False)
            cache.rollback_step()
            assert live_pages(cache) == before
            return
        forward(cache, [stream for stream, _ in batch], tokens)
    except OutOfPages:
        assert live_pages(cache) == before
        return
    for stream, model in batch:
        model.add(stream.done - tokens, tokens)
        if stream.handle in plans:
            model.keep(plans[stream.handle])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scope", ["shared", "layer", "head"])
def test_rows_positions_and_states_are_those_of_plain_lists(scope, seed):
    random_life(scripted(scope), scope, seed)


class Cooling(Scripted):
    """Scripted, and then all but the newest `warm` rows go to an exact second zone; K and V apart."""

    warm = {"K": 3, "V": 5}

    def finish_step(self, view):
        super().finish_step(view)
        for part, warm in self.warm.items():
            outside = view.valid & ~view.in_zone("cold", part)
            view.move(part, ops.oldest(outside, (ops.count(outside, 2) - warm).clamp(min=0)), "cold")

    def rows_after(self, hook, phase, counts, layer, params, model):
        moved = {part: max(0, counts.rows["warm", part] - warm) for part, warm in self.warm.items()}
        rows = {("warm", part): counts.rows["warm", part] - moved[part] for part in moved}
        rows |= {("cold", part): counts.rows["cold", part] + moved[part] for part in moved}
        return replace(counts, rows=rows)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scope", ["shared", "layer", "head"])
def test_moves_and_evictions_together_keep_every_row_in_order(scope, seed):
    zones = (ZoneLayout("warm"), ZoneLayout("cold"))
    layout = Layout(scope=scope, position="rank", page_size=4, evicts=True, states=(TAG,), zones=zones, split=True)
    cache = manager(type("Kind", (Cooling,), {"LAYOUT": layout}), tokens=200)
    cache.script = {}
    random_life(cache, scope, seed, ("cold", "warm"))


class ThreeZones(CacheManager):
    """The newest 3 rows are warm, the next 4 cool, the rest cold; rows may pass two zones in one step."""

    LAYOUT = Layout(position="rank", page_size=4, zones=(ZoneLayout("warm"), ZoneLayout("cool"), ZoneLayout("cold")))

    def finish_step(self, view):
        view.move(None, view.valid & ~ops.recent(view.valid, 7) & ~view.in_zone("cold"), "cold")
        view.move(None, view.valid & ~ops.recent(view.valid, 3) & view.in_zone("warm"), "cool")

    def rows_after(self, hook, phase, counts, layer, params, model):
        warm, cold = min(3, counts.length), max(0, counts.length - 7)
        rows = {"warm": warm, "cold": cold, "cool": counts.length - warm - cold}
        return replace(counts, rows={(zone, part): rows[zone] for zone, part in counts.rows})


@pytest.mark.parametrize("chunk", [1, 4, 30])
def test_rows_may_pass_several_zones_in_one_step(chunk):
    cache = manager(ThreeZones)
    streams = [Stream.random(cache, 21, 1), Stream.random(cache, 5, 2)]
    for stream in streams:
        while stream.done < stream.prompt:
            forward(cache, [stream], min(chunk, stream.prompt - stream.done))
    for _ in range(4):
        forward(cache, streams)
    for stream in streams:
        for part, source in (("K", stream.k), ("V", stream.v)):
            pieces = [stored(cache, stream.handle, zone, part) for zone in ("cold", "cool", "warm")]
            for layer, head in HEADS:
                assert [len(piece[layer][head]) for piece in pieces] == [max(0, stream.done - 7), min(4, stream.done - 3), 3]
                assert torch.equal(torch.cat([piece[layer][head] for piece in pieces]), source[layer, : stream.done, head])


def test_moving_rows_that_are_not_the_oldest_is_an_error_of_ours():
    hook = {"finish_step": lambda self, view: view.move("K", ops.recent(view.valid, 2), "cool")}
    cache = manager(type("Wrong", (ThreeZones,), hook))
    with pytest.raises(AssertionError, match="must be the oldest outside it"):
        forward(cache, [Stream.random(cache, 9, 1)], 9)


class Packing(CacheManager):
    """K in bursts along tokens, V one by one along channels."""

    LAYOUT = Layout(
        page_size=8, zones=(ZoneLayout("tail"), ZoneLayout("packed", {"K": Codec(2, "t", 4), "V": Codec(4, "c", 4)})), split=True
    )

    def finish_step(self, view):
        view.move("K", ops.oldest(view.in_zone("tail", "K"), view.rows("tail", "K") // 4 * 4), "packed")
        view.move("V", view.in_zone("tail", "V") & ~ops.recent(view.in_zone("tail", "V"), 3), "packed")

    def rows_after(self, hook, phase, counts, layer, params, model):
        rows = dict(counts.rows)
        k, v = rows["tail", "K"] // 4 * 4, max(0, rows["tail", "V"] - 3)
        rows["tail", "K"], rows["packed", "K"] = rows["tail", "K"] - k, rows["packed", "K"] + k
        rows["tail", "V"], rows["packed", "V"] = rows["tail", "V"] - v, rows["packed", "V"] + v
        return replace(counts, rows=rows)


@pytest.mark.parametrize("chunk", [1, 3, 8, 40])
def test_packed_zones_hold_what_quantising_the_sequence_gives(chunk):
    cache = manager(Packing)
    streams = [Stream.random(cache, 37, 1), Stream.random(cache, 18, 2)]
    for stream in streams:
        while stream.done < stream.prompt:
            forward(cache, [stream], min(chunk, stream.prompt - stream.done))
    for _ in range(9):
        forward(cache, streams)
    for stream in streams:
        keys = cache.storage.rope.rotate(stream.k, *cache.storage.rope.cos_sin(torch.arange(stream.k.shape[1])))
        packed_k, packed_v = stream.done // 4 * 4, stream.done - 3
        codec_k, codec_v = Codec(2, "t", 4), Codec(4, "c", 4)
        for layer, head in HEADS:
            expected_k = dequantise(quantise(keys[layer, :packed_k, head], codec_k), codec_k)
            expected_v = dequantise(quantise(stream.v[layer, :packed_v, head], codec_v), codec_v)
            assert torch.equal(stored(cache, stream.handle, "packed", "K")[layer][head], expected_k)
            assert torch.equal(stored(cache, stream.handle, "packed", "V")[layer][head], expected_v)
            assert torch.equal(stored(cache, stream.handle, "tail", "V")[layer][head], stream.v[layer, packed_v : stream.done, head])


class DroppingBlocks(Packing):
    """Packing, and the oldest packed rows are dropped in whole blocks."""

    LAYOUT = replace(Packing.LAYOUT, evicts=True)

    def finish_step(self, view):
        super().finish_step(view)
        view.evict(view.valid & ~ops.sink(view.valid, (view.len - 17).clamp(min=0) // 4 * 4))


def test_eviction_moves_codes_as_they_are():
    cache, plain = manager(DroppingBlocks), manager(Packing)
    dropping, whole = Stream.random(cache, 40, 5), Stream.random(plain, 40, 5)
    for kind, stream in ((cache, dropping), (plain, whole)):
        forward(kind, [stream], 40)
        for _ in range(6):
            forward(kind, [stream])
    for part in ("K", "V"):
        for layer, head in HEADS:
            left = stored(cache, dropping.handle, "packed", part)[layer][head]
            assert torch.equal(left, stored(plain, whole.handle, "packed", part)[layer][head][-len(left) :]) and 0 < len(left) < 24


def test_a_step_that_does_not_fit_changes_nothing():
    cache = manager(type("Dense", (CacheManager,), {}), tokens=32)
    stream = Stream.random(cache, 40, 0)
    forward(cache, [stream], 30)
    with pytest.raises(OutOfPages, match="1 pages needed, 0 free"):
        forward(cache, [stream], 10)
    assert cache.rows(stream.handle).max() == 30 and cache.pages().live == 2


def test_pages_that_hooks_fill_without_telling_are_an_error_of_ours():
    silent = type("Silent", (Packing,), {"rows_after": CacheManager.rows_after})
    cache = manager(silent)
    with pytest.raises(AssertionError, match="more rows to 'packed.K' than rows_after told"):
        forward(cache, [Stream.random(cache, 20, 0)], 20)


def test_bytes_are_those_of_the_pages_held():
    cache = manager(Packing)
    stream = Stream.random(cache, 33, 0)
    forward(cache, [stream], 33)
    # packed K: 32 rows, packed V: 30 rows, a page of 128 (a span of 2 bit codes) each; tail K: 1 row, tail V: 3 rows, a page of 8 each.
    codes, scales = (128 * 8 * 2 + 128 * 8 * 4) // 8, 2 * (128 // 4 * 8 + 128 * 8 // 4) * 4
    per_head = codes + scales + 2 * 8 * 8 * 4
    assert cache.bytes(stream.handle).kv == per_head * SHAPE.layers * SHAPE.kv_heads


@pytest.mark.parametrize("scope", ["shared", "layer", "head"])
@pytest.mark.parametrize("zones", [1, 2])
def test_pieces_are_the_rows_that_are_read_whole(scope, zones):
    """Of one raw zone from its pages, of others from what was put together; wherever a piece begins and ends."""
    chance, layout = random.Random(5), Layout(scope=scope, page_size=4, evicts=True)
    if zones == 2:
        layout = replace(layout, zones=(ZoneLayout("new"), ZoneLayout("old")))
    cache = manager(type("Kind", (CacheManager,), {"LAYOUT": layout}), tokens=200)
    for stream in cache.storage.streams.values():
        stream.pool.shuffle(np.random.default_rng(1))
    seen = []

    class Attention:
        def __call__(self, queries, keys, values, scale):
            resident = cache._residents[max(cache._residents)]
            whole = {"K": resident.keys()[0], "V": resident.payload("V")[0]}
            for part, pieces in (("K", keys), ("V", values)):
                assert pieces.tokens == whole[part].shape[1]
                for first, last in [(0, pieces.tokens)] + [sorted(chance.choices(range(pieces.tokens + 1), k=2)) for _ in range(20)]:
                    if first < last:
                        assert torch.equal(pieces.of(first, last), whole[part][:, first:last])
                        seen.append((first % 4, last % 4))
            return torch.zeros_like(queries), None

    cache.chunk_attention = Attention()
    stream = Stream.random(cache, 60, 0)
    for tokens in (13, 16, 31):
        forward(cache, [stream], tokens)
    assert len(set(seen)) == 16
