"""Rows counted on the host: the rules, their simulation, and the formulas that people read."""

from __future__ import annotations

import pytest

from sparsec.graph.capacity import Simulation
from sparsec.graph.counts import count_rules, read_rules
from sparsec.graph.formulas import row_formulas
from sparsec.graph.host import Python, apportion
from sparsec.graph.program import Program
from sparsec.graph.text import text
from sparsec.graph.values import resolve

MODEL = {"n_layers": 8, "kv_heads": 4, "group": 2, "head_dim": 16, "kv_width": 128, "hidden_width": 128, "scale": 0.25}


def simulate(compilation, prompt: int, new: int = 0, chunk: int | None = None):
    params = resolve(compilation.checked, dict(compilation.params), MODEL)
    return Simulation(compilation.special, params, MODEL).run(prompt, new, chunk)


def only(compilation, reads: bool = False):
    (rule,) = (read_rules if reads else count_rules)(compilation.special)
    return rule


def test_a_budget_caps_what_is_held(compiled):
    rule = only(compiled("snapkv"))
    assert (rule.action, text(rule.rows), rule.per, rule.exact) == ("evict", "min(len, budget)", "head", True)


def test_a_prefix_and_a_suffix_add_up(compiled):
    rule = only(compiled("streamingllm"))
    assert text(rule.rows) == "min(len, sinks + (budget - sinks))" and rule.exact


def test_heads_that_compete_are_counted_over_the_layer(compiled):
    rule = only(compiled("ada_snapkv"))
    assert (rule.per, rule.exact, rule.certain) == ("layer", False, True)
    assert text(rule.rows) == "min(len * kv_heads, window * kv_heads + inner * kv_heads)"


def test_a_guard_that_reads_scores_makes_the_rule_uncertain(compiled):
    rule = only(compiled("{ on end_of_prompt when max[i in last(1), h, g, t](probs[i, h, g, t]) > 0.5 and len > 8 { evict keep recent(8) } }"))
    assert not rule.certain and not rule.exact
    assert text(rule.when) == "len > 8"


def test_a_count_taken_before_an_earlier_move_is_not_exact(compiled):
    body = """{ zone tail zone old { } on end_of_prompt { let half = rows(tail) // 2
      move oldest(half, tail) to old  evict keep recent(half) } }"""
    first, second = count_rules(compiled(body).special)
    assert first.exact and not second.exact


def test_pages_are_read_in_whole_pages_and_set_states_by_their_largest_value(compiled):
    assert text(only(compiled("quest"), reads=True).rows) == "min(len, tokens(max(min_pages, pages(budget))))"
    assert text(only(compiled("omnikv"), reads=True).rows) == "min(len, sinks + window + budget)"


def test_counts_read_as_python(compiled):
    compilation = compiled("{ param n: tokens in 1.. = 8  on finish_step when decoding implies len >= n { evict keep recent(max(n, n_layers // 2)) } }")
    rule, python = only(compilation), Python(Program(compilation.special))
    assert python(rule.rows) == 'min(length, max(params["n"], (model["n_layers"] // 2)))'
    assert python(rule.when) == '(not decoding or (length >= params["n"]))'


@pytest.mark.parametrize(
    ("prompt", "kept"),
    [(135, [135] * 8), (200, [136] * 8), (255, [136] * 8), (1000, [258, 223, 188, 153, 119, 84, 49, 14])],
)
def test_budgets_that_shrink_with_depth_are_those_of_the_card(compiled, prompt, kept):
    """Worked example of the method's card: average 136, window 8, beta 20, 8 layers."""
    compilation = compiled("pyramidkv", budget=136, window=8, beta=20)
    held = simulate(compilation, prompt).after_prompt
    assert [held["main", "K", layer] for layer in range(8)] == kept


def test_two_zones_are_followed_apart(compiled):
    counts = simulate(compiled("kivi"), 300, 10, 64)
    assert {place: rows for place, rows in counts.final.items() if place[2] == 0} == {
        ("tail", "K", 0): 310 % 128, ("tail", "V", 0): 128, ("packed", "K", 0): 256, ("packed", "V", 0): 182,
    }  # fmt: skip


def test_sinks_stay_in_the_first_zone_where_one_move_spares_them(compiled):
    body = "{ zone tail zone old { } on end_of_prompt, finish_step { move tail - sink(4) - recent(10) to old } }"
    final = simulate(compiled(body), 100, 5, 32).final
    assert (final["tail", "K", 0], final["old", "K", 0]) == (14, 91)


def test_an_inexact_move_bounds_both_zones_from_above(compiled):
    body = "{ zone tail zone old { } on end_of_prompt { move tail & recent(60) - recent(10) to old } }"
    counts = simulate(compiled(body), 100)
    assert not counts.exact
    assert (counts.final["tail", "K", 0], counts.final["old", "K", 0]) == (100, 50)


def test_the_peak_is_the_prompt_or_the_budget_and_a_chunk(compiled):
    assert simulate(compiled("h2o", budget=64), 1000, 0, 100).peak["main", "K", 0] == 1000
    assert simulate(compiled("h2o", budget=64, evict_in_prefill=True), 1000, 0, 100).peak["main", "K", 0] == 164


@pytest.mark.parametrize(("name", "peak"), [("snapkv", 164), ("pyramidkv", 228), ("ada_snapkv", 228)])
def test_prompts_that_are_compacted_chunk_by_chunk_never_need_more_than_that_and_a_chunk(compiled, name, peak):
    late, early = (simulate(compiled(name, budget=64, evict_in_prefill=value), 1000, 0, 100) for value in (False, True))
    assert {rows for (_, part, _), rows in late.peak.items() if part == "K"} == {1000}
    assert {rows for (_, part, _), rows in early.peak.items() if part == "K"} == {peak}
    assert early.after_prompt == late.after_prompt


@pytest.mark.parametrize("prompt", [64, 65, 120, 127, 128, 129, 140, 192, 500])
@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("rounding", ["exact", "floor_step"])
def test_a_layer_gets_the_same_share_of_the_budget_whether_or_not_chunks_were_compacted(compiled, prompt, chunk, rounding):
    params = {"budget": 64, "window": 8, "rounding": rounding}
    late, early = (simulate(compiled("pyramidkv", **params, evict_in_prefill=value), prompt, 0, chunk) for value in (False, True))
    assert early.after_prompt == late.after_prompt


def test_shares_are_whole_and_add_up():
    assert apportion([1.5, 1.5, 2.0], 5) == [2, 1, 2]
    assert sum(apportion([0.3] * 10, 3)) == 3


EVALUATED = {"snapkv": {}, "h2o": {}, "streamingllm": {}, "tova": {}, "dense": {}, "quest": {}, "omnikv": {}, "ada_snapkv": {}}
VARIANTS = [*EVALUATED.items(), ("h2o", {"evict_in_prefill": True}), ("tova", {"evict_in_prefill": True}), ("snapkv", {"evict_in_prefill": True}), ("ada_snapkv", {"evict_in_prefill": True}), ("streamingllm", {"evict_in_decode": False})]


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@pytest.mark.parametrize(("prompt", "chunk"), [(20, 7), (64, 64), (65, 16), (1000, 100)])
def test_formulas_say_what_the_simulation_counts(compiled, name, params, prompt, chunk):
    small = {"budget": 64} if name not in ("dense", "quest", "omnikv") else {}
    compilation = compiled(name, **small, **params)
    values = resolve(compilation.checked, dict(compilation.params), MODEL)
    new = 400
    counts = simulate(compilation, prompt, new, chunk)
    scope = {**values, "prompt": prompt, "new": new, "chunk": chunk}
    formulas = {f.what: eval(f.rows, scope) for f in compilation.facts.rows if f.what != "read"}
    in_prompt = simulate(compilation, prompt, 0, chunk)
    assert formulas["prompt peak"] == in_prompt.peak["main", "K", 0]
    assert formulas["after prompt"] == counts.after_prompt["main", "K", 0]
    assert formulas["decode peak"] == counts.decode_peak["main", "K", 0]


@pytest.mark.parametrize("flush", ["reference", "blocks"])
@pytest.mark.parametrize("chunk", [64, 1000])
def test_formulas_of_zones_say_what_the_simulation_counts(compiled, flush, chunk):
    compilation = compiled("kivi", flush=flush)
    values = resolve(compilation.checked, dict(compilation.params), MODEL)
    counts = simulate(compilation, 1000, 37, chunk)
    flushed = [formula for formula in row_formulas(Program(compilation.special), count_rules(compilation.special), ()) if formula.what == "flushed"]
    assert len(flushed) == 4
    for formula in flushed:
        assert eval(formula.rows, {**values, "total": 1037}) == counts.final[formula.zone, formula.part, 0], formula
