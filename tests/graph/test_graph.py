"""The hook graph: what is in it, what the passes add, and that nothing illegal passes."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

from sparsec.diagnostics import SpecError
from sparsec.dsl.source import shipped_methods
from sparsec.graph import nodes as n
from sparsec.graph.build import build_graph
from sparsec.graph.passes import PASSES
from sparsec.graph.printer import fact_lines
from sparsec.graph.serial import graph_json
from sparsec.graph.spec import verify
from sparsec.pipeline import Compilation


def graph_of(compilation) -> nx.DiGraph:
    return build_graph(compilation.special)


def of(graph: nx.DiGraph, kind: type) -> list:
    return [data["node"] for _, data in graph.nodes(data=True) if isinstance(data["node"], kind)]


@pytest.mark.parametrize("name", shipped_methods())
def test_every_shipped_method_has_a_legal_graph_that_is_the_same_every_time(compiled, name):
    assert graph_json(graph_of(compiled(name))) == graph_json(graph_of(compiled(name)))


def test_hooks_stand_between_the_models_own_stages_in_lifecycle_order(compiled):
    graph = graph_of(compiled("omnikv"))
    line = nx.DiGraph((a, b) for a, b, data in graph.edges(data=True) if isinstance(data["edge"], n.Follows))
    assert list(nx.topological_sort(line)) == [
        "stage:projections", "hook:build_decode_selection", "stage:attention", "hook:after_decode_attention", "stage:sampling",
    ]  # fmt: skip


def test_a_rule_bound_to_two_hooks_is_fired_by_both(compiled):
    graph = graph_of(compiled("h2o"))
    assert set(graph.predecessors("rule:0")) == {"hook:after_prefill_attention", "hook:after_decode_attention"}


def test_observed_scores_flow_from_attention_to_the_let_that_names_them(compiled):
    graph = graph_of(compiled("snapkv"))
    assert graph.has_edge("stage:attention", "observed:probs:last(window)")
    assert graph.has_edge("observed:probs:last(window)", "let:0:votes")


def test_a_page_bound_reads_queries_and_summaries_and_no_scores(compiled):
    graph = graph_of(compiled("quest"))
    assert [node.tensor for node in of(graph, n.ObservedNode)] == ["Q"]
    assert {key for key in graph.predecessors("let:0:reach")} >= {"observed:Q:step", "summary:kmin", "summary:kmax"}


def test_a_let_that_nothing_uses_is_dead(compiled):
    graph = graph_of(compiled("ada_snapkv"))
    assert [node.name for node in of(graph, n.LetNode) if node.dead] == ["own"]
    used = graph_of(compiled("ada_snapkv", normalize=True))
    assert not any(node.dead for node in of(used, n.LetNode))


def test_passes_write_scope_positions_flow_and_capture(compiled):
    zone = of(graph_of(compiled("streamingllm")), n.ZoneNode)[0]
    assert (zone.scope, zone.position) == ("shared", "rank")
    assert of(graph_of(compiled("omnikv")), n.StateNode)[0].crosses_layers
    rules = of(graph_of(compiled("h2o")), n.RuleNode)
    assert [rule.captured for rule in rules] == [True, False]


def test_a_move_changes_the_zone_that_rows_leave_and_the_one_they_enter(compiled):
    graph = graph_of(compiled("kivi"))
    assert {"zone:tail", "zone:packed"} <= set(graph.successors("action:0:0"))
    assert not graph.has_edge("zone:packed", "set:0:0")


def broken(graph: nx.DiGraph, change) -> nx.DiGraph:
    copy = graph.copy()
    change(copy)
    return copy


def _evict_before_attention(graph: nx.DiGraph) -> None:
    graph.add_node("hook:layer_end", node=n.HookNode("layer_end"))
    graph.remove_edge("stage:attention", "stage:sampling")
    graph.add_edge("stage:attention", "hook:layer_end", edge=n.Follows())
    graph.add_edge("hook:layer_end", "stage:sampling", edge=n.Follows())
    graph.add_edge("hook:layer_end", "rule:0", edge=n.Fires())


WRONG = {
    "layer_end may not evict": _evict_before_attention,
    "a rule is fired by a hook": lambda g: g.remove_edge("hook:end_of_prompt", "rule:0"),
    "act on one set": lambda g: g.remove_node("set:0:0"),
    "evict writes a ZoneNode": lambda g: g.remove_edge("action:0:0", "zone:main"),
    "belongs to one rule": lambda g: g.remove_edge("rule:0", "let:0:votes"),
    "no edge ZoneNode Writes RuleNode": lambda g: g.add_edge("zone:main", "rule:0", edge=n.Writes()),
    "does not depend on itself": lambda g: g.add_edge("let:0:smooth", "let:0:votes", edge=n.Reads()),
    "lifecycle order": lambda g: g.remove_edge("stage:attention", "stage:sampling"),
    "produced by a stage": lambda g: g.remove_edge("stage:attention", "observed:probs:last(window)"),
    "stands under its own key": lambda g: g.add_node("state:other", node=n.StateNode("one", (), "f32", False, 1)),
    "carries one of the dataclasses": lambda g: g.add_node("note", text="hello"),
}


@pytest.mark.parametrize("rule", WRONG)
def test_an_illegal_graph_stops_the_compiler_with_the_pass_and_the_rule(compiled, rule):
    graph = broken(graph_of(compiled("snapkv")), WRONG[rule])
    with pytest.raises(AssertionError, match=f"illegal after my_pass: .*{rule}"):
        verify(graph, "my_pass")


def test_passes_leave_the_method_alone(compiled):
    compilation = compiled("snapkv")
    before = compilation.special.method
    build_graph(compilation.special)
    assert compilation.special.method == before
    assert len({each.__name__ for each in PASSES}) == len(PASSES) == 6


DRAFTS = sorted((Path(__file__).parents[1] / "drafts").glob("*.sparse"))


@pytest.mark.parametrize("path", DRAFTS, ids=lambda path: path.stem)
def test_every_draft_that_checks_has_facts_and_a_legal_graph(path):
    compilation = Compilation.load(str(path))
    try:
        special = compilation.special
    except SpecError:
        pytest.skip("this draft is wrong on purpose")
    assert fact_lines(compilation.facts)
    assert build_graph(special)


def test_a_long_chain_of_lets_is_no_deep_recursion(compiled):
    chain = " ".join(["let a0 = len", *(f"let a{i} = a{i - 1} + a{i - 1}" for i in range(1, 300))])
    compilation = compiled("{ on end_of_prompt { %s evict keep recent(max(1, a299)) } }" % chain)
    assert compilation.facts.table.value == "shared"
    assert graph_of(compilation)
