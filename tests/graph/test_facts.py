"""What is derived from a spec, and the reasons and lines that come with it."""

from __future__ import annotations

import json

import pytest

from sparsec.graph.facts import fingerprint

TEN = ("ada_snapkv", "dense", "h2o", "kivi", "omnikv", "pyramidkv", "quest", "snapkv", "streamingllm", "tova")
HEAD, LAYER = {"ada_snapkv"}, {"pyramidkv"}


def line_of(compilation, fragment: str) -> int:
    lines = compilation.source.text.split("\n")
    return next(number for number, line in enumerate(lines, 1) if fragment in line)


@pytest.mark.parametrize("name", TEN)
def test_table_scope_follows_counts(compiled, name):
    expected = "head" if name in HEAD else "layer" if name in LAYER else "shared"
    assert compiled(name).facts.table.value == expected


def test_heads_that_choose_different_rows_in_equal_numbers_share_a_table(compiled):
    facts = compiled("{ on end_of_prompt when len > 8 { evict keep top[t](sum[c](K[t, h, c]), 8) } }").facts
    assert facts.table.value == "shared"


def test_a_guard_on_the_layer_makes_the_table_per_layer(compiled):
    facts = compiled("{ on end_of_prompt for layer > 0 when len > 8 { evict keep recent(8) } }").facts
    assert facts.table.value == "layer"
    assert "layer > 0" in facts.table.why


def test_positions_are_ranks_where_keys_are_rotated_at_their_order(compiled):
    cache, original = compiled("streamingllm"), compiled("streamingllm", positions="original")
    assert cache.facts.positions.value == "rank"
    assert cache.facts.positions.line == line_of(cache, "decode K")
    assert original.facts.positions.value == "logical"


@pytest.mark.parametrize("name", ["dense", "quest", "omnikv", "kivi"])
def test_prefixes_are_shared_where_nothing_is_evicted_and_nothing_lasting_depends_on_queries(compiled, name):
    assert compiled(name).facts.reuse.value == "radix"


def test_the_reason_for_a_chain_names_the_line_of_the_eviction(compiled):
    compilation = compiled("snapkv")
    line = line_of(compilation, "evict keep")
    assert compilation.facts.reuse.why == f"no radix reuse, because rows are evicted at line {line}"
    assert compilation.facts.reuse.line == line


def test_a_lasting_state_that_depends_on_queries_rules_out_radix_reuse(compiled):
    text = """{ state mass[t, h]: f32 = 0
      on after_prefill_attention, after_decode_attention { mass[t, h] += sum[i, g](probs[i, h, g, t]) }
      on build_decode_selection { attend recent(4) | top[t](mass[t, h], 4) } }"""
    facts = compiled(text).facts
    assert (facts.reuse.value, facts.reuse.line) == ("chain", 3)
    assert "mass" in facts.reuse.why


@pytest.mark.parametrize(
    ("name", "params", "value"),
    [
        ("snapkv", {}, "derived"),
        ("pyramidkv", {}, "derived"),
        ("ada_snapkv", {}, "derived"),
        ("snapkv", {"evict_in_prefill": True}, "no"),
        ("pyramidkv", {"evict_in_prefill": True}, "no"),
        ("ada_snapkv", {"evict_in_prefill": True}, "no"),
        ("h2o", {}, "derived"),
        ("h2o", {"evict_in_prefill": True}, "no"),
        ("tova", {"evict_in_prefill": True}, "no"),
        ("streamingllm", {}, "no"),
        ("streamingllm", {"evict_in_prefill": False}, "derived"),
        ("quest", {}, "derived"),
        ("kivi", {}, "no"),
    ],
)
def test_chunk_invariance_is_derived_unless_something_happens_before_the_prompt_ends(compiled, name, params, value):
    assert compiled(name, **params).facts.chunks.value == value


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("snapkv", "min(prompt, budget + chunk)"),
        ("pyramidkv", "min(prompt, 2 * budget + chunk)"),
        ("ada_snapkv", "min(prompt, 2 * budget + chunk)"),
    ],
)
def test_the_peak_of_a_prompt_is_the_prompt_or_what_a_chunk_leaves_and_the_next_chunk(compiled, name, peak):
    late, early = (compiled(name, evict_in_prefill=value).facts for value in (False, True))
    said = [{formula.what: formula.rows for formula in facts.rows} for facts in (late, early)]
    assert [rows["prompt peak"] for rows in said] == ["prompt", peak]
    assert said[0]["after prompt"] == said[1]["after prompt"]
    assert early.capture.whole_step


def test_a_score_that_each_chunk_rewrites_is_not_chunk_invariant(compiled):
    body = """on after_prefill_attention { vote[t, h] %s sum[i, g](probs[i, h, g, t]) }
      on end_of_prompt { evict keep recent(2) then top[t](vote[t, h]) upto 8 }"""
    state = "{ state vote[t, h]: f32 = 0 "
    assert compiled(state + body % "+=" + " }").facts.chunks.value == "derived"
    rewritten = compiled(state + body % "=" + " }").facts.chunks
    assert rewritten.value == "no"
    assert "rewritten by every chunk" in rewritten.why
    assert compiled(state + body % "=" + " invariant chunks }").facts.chunks.value == "declared"


def test_observed_scores_say_which_queries_and_how_they_reduce(compiled):
    (use,) = compiled("snapkv").facts.observed
    assert (use.tensor, use.queries, use.reduces[:2]) == ("probs", "last(window)", ("sum[i]", "mean[g]"))
    (use,) = compiled("h2o", reduce="max").facts.observed
    assert (use.queries, use.reduces) == ("step", ("max[g]", "sum[i]"))
    assert compiled("omnikv").facts.observed[0].tensor == "logits"
    assert compiled("quest").facts.observed == ()


def test_the_ring_holds_the_longest_window(compiled):
    assert compiled("snapkv").facts.ring == "window"
    assert compiled("tova").facts.ring == "1"
    assert compiled("h2o").facts.ring is None
    two = "{ on end_of_prompt { evict keep top[t](max[i in last(4), h, g](probs[i, h, g, t]) + max[i in last(9), h, g](probs[i, h, g, t]), 8) } }"
    assert compiled(two).facts.ring == "max(4, 9)"


def test_keys_and_values_that_move_apart_are_split(compiled):
    assert compiled("kivi").facts.split.value == "yes"
    assert compiled("kivi", flush="blocks").facts.split.value == "no"


def test_codecs_are_part_of_the_zone(compiled):
    tail, packed = compiled("kivi", k_bits=4).facts.zones
    assert tail.stores == ()
    assert [(store.bits, store.along, store.block, store.zero) for store in packed.stores] == [(4, "t", 32, True), (2, "c", 32, True)]


def test_a_shared_state_is_a_flow_from_its_writers_to_its_readers(compiled):
    (flow,) = compiled("omnikv").facts.flow
    assert flow.state == "chosen" and flow.within_step
    assert "after_decode_attention" in flow.writers[0] and "build_decode_selection" in flow.readers[0]


def test_params_are_static_or_per_request_and_say_what_they_bound(compiled):
    params = {param.name: param for param in compiled("snapkv").facts.params}
    assert params["budget"].set_at == "request" and params["budget"].bounds == ("rows",)
    assert params["window"].bounds == ("ring",)
    assert params["kernel"].set_at == "compile"


def test_only_evictions_and_moves_that_can_happen_while_decoding_run_outside_the_graph(compiled):
    assert compiled("snapkv").facts.capture.whole_step
    outside = compiled("h2o").facts.capture.outside
    assert [part.value for part in outside] == ["finish_step"]


def test_reductions_over_heads_are_listed_for_tensor_parallelism(compiled):
    assert compiled("snapkv").facts.parallel == ()
    (joint,) = compiled("snapkv", heads="joint").facts.parallel
    assert joint.value == "max[h]" and joint.why.startswith("all-reduce")
    assert {part.value for part in compiled("ada_snapkv").facts.parallel} == {"top[t, h]", "apportion[h]"}


def test_facts_as_json_are_sorted_and_stable(compiled):
    first, second = compiled("ada_snapkv").facts.to_json(), compiled("ada_snapkv").facts.to_json()
    assert first == second
    assert list(json.loads(first)) == sorted(json.loads(first))


def test_the_fingerprint_ignores_words_and_sees_meaning(compiled):
    plain = "{ param n: tokens in 1.. = 8\n on end_of_prompt { evict keep recent(n) } }"
    print_of = compiled(plain).facts.fingerprint
    assert compiled('{ cite "x"\n param n: tokens in 1.. = 8 "doc" # comment\n on end_of_prompt { evict keep recent(n) } }').facts.fingerprint == print_of
    assert compiled(plain.replace("= 8", "= 9")).facts.fingerprint != print_of
    assert compiled(plain.replace("recent(n)", "sink(n)")).facts.fingerprint != print_of
    assert compiled("quest", page_size=32).facts.fingerprint != compiled("quest").facts.fingerprint


def test_the_fingerprint_of_a_model_is_part_of_it(compiled):
    compilation = compiled("dense")
    method = compilation.special.method
    assert fingerprint(method, {}, {"n_layers": 2}) != fingerprint(method, {}, {"n_layers": 3})
