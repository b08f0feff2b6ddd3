"""What hooks see and decide: scores against plain tensors, order of hooks, states, summaries, rollback, admission."""

import pytest
import torch
from caching import ROPE, SHAPE, Stream, forward, manager, prefill, run
from sparsec_runtime.abi import CacheManager, Layout, ParamSpec, StateLayout, SummaryLayout, ops
from sparsec_runtime.attention import observe
from sparsec_runtime.params import ParamError, resolve_params


def spying(layout=Layout(), **hooks):
    """A manager whose hooks are the given functions."""
    return manager(type("Spy", (CacheManager,), {"LAYOUT": layout, **hooks}))


def plain_probs(stream, layer, queries, held, total=None):
    """[query, kv_head, group, token] of queries over held rows, by softmax in fp32."""
    cos, sin = ROPE.cos_sin(torch.arange(stream.q.shape[1]))
    q = ROPE.rotate(stream.q[layer], cos, sin)[queries].unflatten(1, (SHAPE.kv_heads, -1))
    k = ROPE.rotate(stream.k[layer], cos, sin)[held]
    scores = torch.einsum("ihgc,thc->ihgt", q, k) * SHAPE.scale
    seen = torch.tensor(held)[None, :] <= torch.tensor(queries)[:, None]
    return scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)


def test_hooks_fire_in_lifecycle_order():
    seen = []
    names = ("kv_write", "build_prefill_selection", "before_prefill_attention", "after_prefill_attention", "build_decode_selection",
             "before_decode_attention", "after_decode_attention", "layer_end", "end_of_prompt", "finish_step")  # fmt: skip
    cache = spying(**{name: (lambda self, view, name=name: seen.extend((name, layer) for layer in view.layer.tolist())) for name in names})
    stream = Stream.random(cache, 8, 0)
    forward(cache, [stream], 5)
    layers = range(SHAPE.layers)
    per_layer = ("kv_write", "build_prefill_selection", "before_prefill_attention", "after_prefill_attention", "layer_end")
    chunk = [(name, layer) for layer in layers for name in per_layer]
    assert seen == chunk + [("finish_step", layer) for layer in layers]
    seen.clear()
    forward(cache, [stream], 3)
    assert seen == chunk + [(name, layer) for name in ("end_of_prompt", "finish_step") for layer in layers]
    seen.clear()
    forward(cache, [stream])
    assert [name for name, layer in seen if layer == 1] == [
        "kv_write", "build_decode_selection", "before_decode_attention", "after_decode_attention", "layer_end", "finish_step"
    ]  # fmt: skip


def test_a_guard_keeps_a_hook_out_of_a_layer():
    seen = []
    cache = spying(
        kv_write=lambda self, view: seen.extend(view.layer.tolist()), GUARDS={"kv_write": (lambda layer, model: layer == model["n_layers"] - 1,)}
    )
    forward(cache, [Stream.random(cache, 8, 0)], 8)
    assert seen == [SHAPE.layers - 1]


def test_probs_of_blocks_are_those_of_plain_attention(monkeypatch):
    monkeypatch.setattr("sparsec_runtime.attention.observe.BLOCK_SCORES", 200)
    found = {}

    def after(self, view):
        blocks = list(view.blocks())
        assert len(blocks) > 1 or view.queries == 1
        found[view.some_layer] = torch.cat([block.probs for block in blocks], dim=1)

    cache = spying(after_prefill_attention=after, after_decode_attention=after)
    stream = Stream.random(cache, 20, 1)
    forward(cache, [stream], 12)
    forward(cache, [stream], 8)
    for layer, probs in found.items():
        assert torch.allclose(probs[0], plain_probs(stream, layer, list(range(12, 20)), list(range(20))), atol=1e-6)
    forward(cache, [stream])
    assert torch.allclose(found[2][0], plain_probs(stream, 2, [20], list(range(21))), atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_blocks_cover_the_queries_in_order_and_bound_their_scores(device):
    limit = observe.DEVICE_SCORES if device == "cuda" else observe.BLOCK_SCORES
    for queries, tokens in ((1, 1), (512, 4096), (8192, 131072), (3, 1 << 27)):
        blocks = list(observe.blocks_of(queries, 32, tokens, torch.device(device)))
        assert [n for first, last in blocks for n in range(first, last)] == list(range(queries))
        assert all((last - first) * 32 * tokens <= limit or last - first == 1 for first, last in blocks)


@pytest.mark.parametrize("over_g", ["sum", "mean", "max"])
def test_the_mass_of_a_step_is_that_of_its_blocks_in_order_bit_for_bit(monkeypatch, over_g):
    monkeypatch.setattr("sparsec_runtime.attention.observe.BLOCK_SCORES", 200)
    found = []

    def after(self, view):
        expected = None
        for block in view.blocks():
            part = getattr(block.probs, {"max": "amax"}.get(over_g, over_g))(3).sum(1)
            expected = part if expected is None else expected + part
        found.append((view.mass(over_g), expected))

    cache = spying(after_prefill_attention=after, after_decode_attention=after)
    stream = Stream.random(cache, 20, 1)
    for tokens in (12, 8, 1):
        forward(cache, [stream], tokens)
    assert len(found) == 3 * SHAPE.layers and all(torch.equal(mass, expected) for mass, expected in found)


def test_probs_are_zero_where_the_query_does_not_attend():
    found = {}

    def select(self, view):
        view.attend(ops.recent(view.visible, 3)[:, :, :, None])

    cache = spying(build_decode_selection=select, after_decode_attention=lambda self, view: found.update(probs=view.step.probs))
    stream = Stream.random(cache, 9, 1)
    run(cache, stream, 1)
    assert (found["probs"][..., :-3] == 0).all() and torch.allclose(found["probs"].sum(-1), torch.ones(()))


@pytest.mark.parametrize("chunk", [1, 2, 5, 30])
def test_a_window_spans_chunks_and_steps_and_sees_the_rows_now_held(chunk):
    found = {}

    def finish(self, view):
        view.evict(ops.sink(view.valid, 3) | ops.recent(view.valid, 6))
        window = view.window(4)
        for row, layer in enumerate(view.layer.tolist()):
            found[layer] = (window.probs[row], window.query_pos[row].tolist(), window.query_valid[row].tolist(), view.pos[row, 0].tolist())

    cache = spying(Layout(evicts=True, ring=lambda params, model: 4, page_size=4), finish_step=finish)
    stream = Stream.random(cache, 17, 5)
    prefill(cache, stream, chunk)
    for _ in range(2):
        forward(cache, [stream])
    probs, queries, real, held = found[1]
    assert queries == [15, 16, 17, 18] and all(real) and held[:3] == [0, 1, 2] and held[3:] == list(range(13, 19))
    assert torch.allclose(probs, plain_probs(stream, 1, queries, held), atol=1e-6)


def test_a_window_longer_than_the_sequence_marks_what_is_missing_and_may_differ_per_row():
    found, requests = [], 1
    cache = spying(
        Layout(ring=lambda params, model: 6),
        finish_step=lambda self, view: found.append(view.window(torch.tensor([6, 2])[:requests].repeat(SHAPE.layers))),
    )
    streams = [Stream.random(cache, 3, 0), Stream.random(cache, 9, 1)]
    for stream in streams:
        prefill(cache, stream)
    requests = 2
    forward(cache, streams)
    block = found[-1]
    assert block.query_valid.tolist() == [[False, False, True, True, True, True], [False] * 4 + [True] * 2] * SHAPE.layers
    assert (block.probs[~block.query_valid] == 0).all()


def test_window_queries_of_the_rank_rule_are_rotated_at_their_rank():
    found = {}

    def finish(self, view):
        view.evict(ops.sink(view.valid, 1) | ops.recent(view.valid, 4))
        assert view.layer[0] == 0
        found[0] = (view.window(2).probs[0], view.pos[0, 0].tolist())

    cache = spying(Layout(position="rank", evicts=True, ring=lambda params, model: 2), finish_step=finish)
    stream = Stream.random(cache, 11, 2)
    forward(cache, [stream], 11)
    probs, held = found[0]
    assert held == [0, 7, 8, 9, 10]
    cos, sin = ROPE.cos_sin(torch.arange(5))
    q = ROPE.rotate(stream.q[0, [9, 10]], cos[3:], sin[3:]).unflatten(1, (SHAPE.kv_heads, -1))
    scores = torch.einsum("ihgc,thc->ihgt", q, ROPE.rotate(stream.k[0, held], cos, sin)) * SHAPE.scale
    scores[0, ..., 4] = float("-inf")
    assert torch.allclose(probs, scores.softmax(-1), atol=1e-6)


def test_keys_before_rope_can_be_read_under_both_position_rules():
    for position in ("logical", "rank"):
        found = {}
        cache = spying(Layout(position=position), finish_step=lambda self, view: found.update(zip(view.layer.tolist(), zip(view.K_raw, view.K))))
        stream = Stream.random(cache, 10, 3)
        forward(cache, [stream], 10)
        raw, turned = found[1]
        assert torch.allclose(raw.transpose(0, 1), stream.k[1, :10], atol=1e-5)
        assert torch.allclose(turned.transpose(0, 1), ROPE.rotate(stream.k[1, :10], *ROPE.cos_sin(torch.arange(10))), atol=1e-5)


def test_later_expressions_of_a_hook_see_an_eviction_and_other_steps_see_it_too():
    lengths = []

    def finish(self, view):
        view.evict(ops.recent(view.valid, 5), when=view.len > 8)
        view.evict(ops.recent(view.valid, 4), when=view.len < 6)
        lengths.append((view.len.tolist(), view.pos[:, 0].tolist(), view.valid.sum().item()))

    cache = spying(Layout(evicts=True), finish_step=finish)
    streams = [Stream.random(cache, 7, 0), Stream.random(cache, 8, 1)]
    for stream in streams:
        forward(cache, [stream], stream.prompt)
    forward(cache, streams)
    assert lengths[-1] == ([8, 4] * SHAPE.layers, [list(range(8)), [5, 6, 7, 8, -1, -1, -1, -1]] * SHAPE.layers, 12 * SHAPE.layers)
    assert [cache.rows(stream.handle).max() for stream in streams] == [8, 4]
    assert [cache.tokens_evicted(stream.handle) for stream in streams] == [0.0, 5.0]


def test_a_rolled_back_step_leaves_states_rings_and_counts_as_they_were():
    def after(self, view):
        view.set_state("mass", view.state("mass") + view.step.probs.sum((1, 3)))
        view.set_state("total", view.state("total") + 1)

    states = (StateLayout("mass", ("t", "h"), "f32", 0.0), StateLayout("total", (), "i32", 0))
    layout = Layout(states=states, ring=lambda params, model: 3, evicts=True, page_size=4)
    seen = []

    def finish(self, view):
        seen.append((view.state("mass").clone(), view.state("total").clone(), view.window(3).probs))
        view.evict(ops.recent(view.valid, 6))

    once, twice = (spying(layout, after_prefill_attention=after, after_decode_attention=after, finish_step=finish) for _ in range(2))
    traces = []
    for cache, retry in ((once, False), (twice, True)):
        seen.clear()
        stream = Stream.random(cache, 9, 7)
        prefill(cache, stream, 4)
        for _ in range(3):
            if retry:
                forward(cache, [stream], commit=False)
                cache.rollback_step()
            forward(cache, [stream])
        traces.append(seen[-1:])
        assert cache.pages().live == 2
    assert all(torch.equal(a, b) for one, other in zip(*traces) for a, b in zip(one, other))


def test_states_of_all_layers_and_of_one_step_are_shared_as_declared():
    seen = []

    def layer_end(self, view):
        if view.some_layer == 0:
            view.set_shared("pick", view.valid[:, 0] & (view.pos[:, 0] % 2 == 0))
        view.set_state("depth", view.state("depth") + ops.index(SHAPE.layers, view.device).eq(view.layer))
        seen.append((view.shared("pick").sum().item(), view.state("depth").tolist()))

    states = (StateLayout("pick", ("t",), "bool", True, shared=True), StateLayout("depth", ("l",), "i32", 0))
    cache = spying(Layout(states=states), layer_end=layer_end, kv_write=lambda self, view: seen.append(view.shared("pick").sum().item()))
    stream = Stream.random(cache, 6, 0)
    forward(cache, [stream], 6)
    assert seen == [6, (3, [[1, 0, 0]]), 3, (3, [[1, 1, 0]]), 3, (3, [[1, 1, 1]])]
    forward(cache, [stream])
    assert seen[-1] == (4, [[2, 2, 2]])


@pytest.mark.parametrize("scope", ["shared", "layer", "head"])
def test_summaries_cover_the_rows_present_and_follow_evictions(scope):
    seen = {}

    def build(self, view):
        seen[view.some_layer] = (view.summary("least"), ops.page_min(view.K, view.valid, view.page_size), view.page_valid)

    layout = Layout(scope=scope, page_size=4, evicts=True, summaries=(SummaryLayout("least", ("p", "h", "c")),))
    cache = spying(
        layout, build_decode_selection=build, build_prefill_selection=build,
        summary_least=lambda self, pages: ops.page_min(pages.K, pages.valid, pages.page_size),
        finish_step=lambda self, view: view.evict(ops.sink(view.valid, 3) | ops.recent(view.valid, 7), when=view.len > 13),
    )  # fmt: skip
    streams = [Stream.random(cache, 21, 0), Stream.random(cache, 6, 1)]
    for stream in streams:
        prefill(cache, stream, 5)
    for _ in range(9):
        forward(cache, streams)
        for summary, expected, held in seen.values():
            assert torch.equal(*(x[held.expand(x.shape[:3])] for x in (summary, expected)))


def test_admission_needs_the_peak_that_a_run_reaches():
    def after(self, hook, phase, counts, layer, params, model):
        held = min(counts.length, 10) if hook == "end_of_prompt" else counts.length
        return type(counts)(held, {place: min(rows, held) for place, rows in counts.rows.items()}, *[counts.prompt_rows, counts.steps, True])

    for scope in ("shared", "layer"):
        cache = spying(
            Layout(scope=scope, evicts=True, page_size=4), rows_after=after,
            end_of_prompt=lambda self, view: view.evict(ops.recent(view.valid, 10)),
        )  # fmt: skip
        for prompt, new in ((3, 2), (30, 4), (12, 40)):
            stream = Stream.random(cache, prompt, 0)
            peak, page = 0, SHAPE.layers * SHAPE.kv_heads * 4 * SHAPE.head_dim * 4 * 2
            run(cache, stream, new - 1, chunk=8)
            peak = cache.bytes(stream.handle).peak // page * (SHAPE.layers if scope == "layer" else 1)
            assert cache.page_need(prompt, new, 8, {}) == peak
            cache.close(stream.handle)


def test_peaks_are_counted_again_but_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr("sparsec_runtime.cache.NEEDS_KEPT", 5)
    cache = spying(Layout(page_size=4))
    needs = [cache.page_need(prompt, 3, 8, {}) for prompt in range(1, 30)]
    assert len(cache._needs) == 5 and [cache.page_need(prompt, 3, 8, {}) for prompt in range(1, 30)] == needs


def test_params_are_checked_with_the_values_of_the_request():
    specs = (
        ParamSpec("budget", "tokens", False, low=lambda p, m: 1, default=lambda p, m: 64),
        ParamSpec("recent", "tokens", False, low=lambda p, m: 1, high=lambda p, m: p["budget"], default=lambda p, m: max(1, p["budget"] // 2)),
        ParamSpec("kind", "choice", True, choices=("a", "b"), default=lambda p, m: "a"),
    )
    assert resolve_params(specs, {"budget": "25%"}, {}, prompt_len=103) == {"budget": 25, "recent": 12, "kind": "a"}
    assert resolve_params(specs, {"budget": "25%"}, {}, prompt_len=2)["budget"] == 1
    for given, message in (
        ({"recent": 65}, "'recent' = 65: it must be at most 64"),
        ({"budget": 0}, "'budget' = 0: it must be at least 1"),
        ({"kind": "c"}, "'kind' = c: it must be one of a, b"),
        ({"size": 3}, "unknown param 'size'.*this method has: budget, recent, kind"),
        ({"budget": "many"}, "'budget' = 'many': it must be of unit tokens"),
        ({"budget": 2.5}, "'budget' = 2.5: it must be of unit tokens"),
    ):
        with pytest.raises(ParamError, match=message):
            resolve_params(specs, given, {}, prompt_len=10)
