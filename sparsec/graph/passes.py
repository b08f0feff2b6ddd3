"""Passes over the hook graph. Each adds what one analysis found and leaves a legal graph; none changes the method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import networkx as nx

from sparsec.dsl import tree as t
from sparsec.dsl.phases import DECODE, can_fire
from sparsec.graph import nodes as n
from sparsec.graph.counts import count_rules
from sparsec.graph.program import Program
from sparsec.graph.queries import OBSERVABLE, observed
from sparsec.graph.scope import cross_layer_flow, position_rule, table_scope
from sparsec.graph.spec import verify

Pass = Callable[[nx.DiGraph, Program], nx.DiGraph]


def run_passes(graph: nx.DiGraph, program: Program) -> nx.DiGraph:
    """Every pass in order, on copies, verified after each."""
    for each in PASSES:
        graph = verify(each(graph.copy(), program), each.__name__)
    return graph


def resolve_observed(graph: nx.DiGraph, program: Program) -> nx.DiGraph:
    """Adds what attention must return or the engine must keep: which scores and Q, of which queries, for whom."""
    for use in observed(program, OBSERVABLE):
        node = n.ObservedNode(use.tensor, use.queries)
        graph.add_node(node.key, node=node)
        graph.add_edge("stage:projections" if use.tensor == "Q" else "stage:attention", node.key, edge=n.Produces())
        for reader in _naming(use.tensor, use.rule, program):
            if reader in graph:
                graph.add_edge(node.key, reader, edge=n.Reads())
    return graph


def _naming(tensor: str, index: int, program: Program) -> list[str]:
    """Keys of the lets, sets and actions of a rule that name a tensor themselves."""
    rule = program.rules[index]
    found = [f"let:{index}:{let.target.name}" for let in rule.lets if _names(let.value, tensor)]
    for order, effect in enumerate(rule.effects):
        if _names(effect.stmt, tensor):
            found.append(f"action:{index}:{order}" if isinstance(effect.stmt, t.Assign | t.Blend) else f"set:{index}:{order}")
    return found


def _names(node: t.Node, word: str) -> bool:
    return any(isinstance(part, t.Ref) and part.name.text == word for part in t.walk(node))


def mark_dead_lets(graph: nx.DiGraph, program: Program) -> nx.DiGraph:
    """A let that reaches no action and that no `ensure` names is dead."""
    checked = frozenset().union(*(program.reads(item.condition, None) for item in program.method.of(t.Ensure)))
    for key, node in _of_kind(graph, n.LetNode):
        reached = nx.descendants(graph, key)
        used = any(isinstance(graph.nodes[other]["node"], n.ActionNode | n.RuleNode) for other in reached)
        named = any(graph.nodes[other]["node"].name in checked for other in reached | {key} if other.startswith("let:"))
        _replace(graph, replace(node, dead=not (used or named)))
    return graph


def infer_table_scope(graph: nx.DiGraph, program: Program) -> nx.DiGraph:
    """Writes the table scope on every zone: tables follow counts, and counts are the method's."""
    scope = table_scope(program, count_rules(program.checked)).value
    for _, node in _of_kind(graph, n.ZoneNode):
        _replace(graph, replace(node, scope=scope))
    return graph


def infer_positions(graph: nx.DiGraph, program: Program) -> nx.DiGraph:
    """Writes the position rule on every zone: one rule for the whole method."""
    rule = position_rule(program).value
    for _, node in _of_kind(graph, n.ZoneNode):
        _replace(graph, replace(node, position=rule))
    return graph


def infer_flow(graph: nx.DiGraph, program: Program) -> nx.DiGraph:
    """Marks states that carry a value from one layer to another."""
    crossing = {flow.state for flow in cross_layer_flow(program)}
    for _, node in _of_kind(graph, n.StateNode):
        _replace(graph, replace(node, crosses_layers=node.name in crossing))
    return graph


def split_capture(graph: nx.DiGraph, program: Program) -> nx.DiGraph:
    """Says of every rule that runs in decode steps whether it can run inside the step's CUDA graph."""
    hosted = any(zone.tier is not None and zone.tier.text == "cpu" for zone in program.zones)
    for rule in program.rules:
        node = graph.nodes[f"rule:{rule.index}"]["node"]
        decodes = can_fire(rule.names, rule.hook.when, DECODE)
        outside = (t.Evict, t.Move, t.Attend) if hosted else (t.Evict, t.Move)
        leaves = any(isinstance(effect.stmt, outside) for effect in rule.effects)
        _replace(graph, replace(node, captured=not leaves if decodes else None))
    return graph


PASSES: tuple[Pass, ...] = (
    resolve_observed,
    mark_dead_lets,
    infer_table_scope,
    infer_positions,
    infer_flow,
    split_capture,
)


def _of_kind(graph: nx.DiGraph, kind: type) -> list[tuple[str, n.Node]]:
    return [(key, data["node"]) for key, data in graph.nodes(data=True) if isinstance(data["node"], kind)]


def _replace(graph: nx.DiGraph, node: n.Node) -> None:
    graph.nodes[node.key]["node"] = node
