"""What a hook graph may look like. `verify` runs after the build and after every pass; a graph that breaks a rule stops
the compiler with the pass, the node and the rule, because it is our mistake and never the user's."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from sparsec.dsl.names import HOOKS
from sparsec.graph import nodes as n

_VALUES = (n.StateNode, n.SummaryNode, n.ZoneNode, n.ObservedNode, n.LetNode)
_READERS = (n.LetNode, n.SetNode, n.ActionNode, n.RuleNode)
LEGAL_EDGES: frozenset[tuple[type, type, type]] = frozenset(
    {
        *((source, n.Follows, target) for source in (n.Stage, n.HookNode) for target in (n.Stage, n.HookNode)),
        (n.HookNode, n.Fires, n.RuleNode),
        *((n.RuleNode, n.Contains, target) for target in (n.LetNode, n.ActionNode)),
        *((source, n.Reads, target) for source in _VALUES for target in _READERS),
        (n.SetNode, n.Chooses, n.ActionNode),
        (n.ActionNode, n.Writes, n.StateNode),
        (n.ActionNode, n.Writes, n.ZoneNode),
        (n.ZoneNode, n.Derives, n.SummaryNode),
        (n.Stage, n.Produces, n.ObservedNode),
    }
)
ACTIONS = {"update": "state", "evict": "evict", "move": "move", "attend": "attend", "blend": "blend"}
CHOSEN = frozenset({"evict", "move", "attend"})


def verify(graph: nx.DiGraph, after: str) -> nx.DiGraph:
    """The graph itself, if it is legal; an assertion that names the pass, the node and the rule otherwise."""
    for key, rule in _violations(graph):
        raise AssertionError(f"hook graph illegal after {after}: {key}: {rule}")
    return graph


def _violations(graph: nx.DiGraph) -> Iterator[tuple[str, str]]:
    for key, data in graph.nodes(data=True):
        node = data.get("node")
        if not isinstance(node, n.Node):
            yield key, "a node carries one of the dataclasses of nodes.py"
            return
        if node.key != key:
            yield key, f"a node stands under its own key, {node.key}"
    for source, target, data in graph.edges(data=True):
        kinds = (type(graph.nodes[source]["node"]), type(data.get("edge")), type(graph.nodes[target]["node"]))
        if kinds not in LEGAL_EDGES:
            yield f"{source} -> {target}", f"no edge {' '.join(kind.__name__ for kind in kinds)} is allowed"
    yield from _lifecycle(graph)
    for key, data in graph.nodes(data=True):
        for rule in _of_node(graph, key, data["node"]):
            yield key, rule
    yield from _acyclic(graph)


def _lifecycle(graph: nx.DiGraph) -> Iterator[tuple[str, str]]:
    """Hooks and stages stand on one line, each once."""
    points = [key for key, data in graph.nodes(data=True) if isinstance(data["node"], n.Stage | n.HookNode)]
    order = _edges(graph, n.Follows)
    line = nx.DiGraph()
    line.add_nodes_from(points)
    line.add_edges_from(order)
    for key in points:
        if line.in_degree(key) > 1 or line.out_degree(key) > 1:
            yield key, "lifecycle order is a line"
    if len(order) != len(points) - 1 or not nx.is_weakly_connected(line):
        yield points[0] if points else "graph", "lifecycle order connects every hook and stage once"


def _of_node(graph: nx.DiGraph, key: str, node: n.Node) -> Iterator[str]:
    sources = _kinds(graph, graph.in_edges(key, data=True), end=0)
    if isinstance(node, n.RuleNode) and (n.HookNode, n.Fires) not in sources:
        yield "a rule is fired by a hook"
    if isinstance(node, n.LetNode | n.ActionNode) and sources.count((n.RuleNode, n.Contains)) != 1:
        yield "a let or an action belongs to one rule"
    if isinstance(node, n.ActionNode):
        yield from _of_action(graph, key, node, sources)
    if isinstance(node, n.SetNode) and not list(graph.successors(key)):
        yield "a set is chosen by an action"
    if isinstance(node, n.SummaryNode) and (n.ZoneNode, n.Derives) not in sources:
        yield "a summary is derived from a zone"
    if isinstance(node, n.ObservedNode) and (n.Stage, n.Produces) not in sources:
        yield "what is observed is produced by a stage"


def _of_action(graph: nx.DiGraph, key: str, node: n.ActionNode, sources: list[tuple[type, type]]) -> Iterator[str]:
    if node.kind not in ACTIONS:
        yield f"an action is one of {', '.join(sorted(ACTIONS))}"
        return
    if sources.count((n.SetNode, n.Chooses)) != (1 if node.kind in CHOSEN else 0):
        yield "evict, move and attend act on one set, other actions on none"
    written = _kinds(graph, graph.out_edges(key, data=True), end=1)
    expected = {"update": n.StateNode, "evict": n.ZoneNode, "move": n.ZoneNode}.get(node.kind)
    if expected is None and written:
        yield "a selection writes nothing"
    if expected is not None and ((expected, n.Writes) not in written or any(kind != (expected, n.Writes) for kind in written)):
        yield f"{node.kind} writes a {expected.__name__}"
    for hook in _hooks_of(graph, f"rule:{node.rule}"):
        may = HOOKS[hook].may
        if ACTIONS[node.kind] not in may and not (node.kind == "update" and "shared" in may):
            yield f"{hook} may not {node.kind}"


def _acyclic(graph: nx.DiGraph) -> Iterator[tuple[str, str]]:
    """Values of a rule are computed from earlier ones; only states and zones carry a value round."""
    inner = [key for key, data in graph.nodes(data=True) if isinstance(data["node"], n.LetNode | n.SetNode)]
    part = graph.subgraph(inner)
    if not nx.is_directed_acyclic_graph(part):
        yield next(iter(sorted(part.nodes))), "a let does not depend on itself"


def _edges(graph: nx.DiGraph, kind: type) -> list[tuple[str, str]]:
    return [(source, target) for source, target, data in graph.edges(data=True) if isinstance(data["edge"], kind)]


def _kinds(graph: nx.DiGraph, edges: list[tuple[str, str, dict]], end: int) -> list[tuple[type, type]]:
    return [(type(graph.nodes[edge[end]]["node"]), type(edge[2]["edge"])) for edge in edges]


def _hooks_of(graph: nx.DiGraph, rule: str) -> list[str]:
    if rule not in graph:
        return []
    nodes = (graph.nodes[source]["node"] for source in graph.predecessors(rule))
    return [node.name for node in nodes if isinstance(node, n.HookNode)]
