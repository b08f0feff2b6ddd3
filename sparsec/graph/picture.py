"""A hook graph arranged for drawing: lifecycle points, rule boxes, data boxes and the links between them.

The dot, mermaid and svg writers draw this and look at nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from sparsec.graph import nodes as n

LONGEST = 84  # characters of a let; actions are never cut


@dataclass(frozen=True, slots=True)
class Point:
    """kind: "stage" (the model's own) or "hook"."""

    key: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class RuleBox:
    """hooks: keys of the points that fire it. lines: (kind, text), kind in guard, let, dead, action."""

    key: str
    hooks: tuple[str, ...]
    title: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DataBox:
    """kind: observed, state, summary or zone."""

    key: str
    kind: str
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """kind "reads" (data to rule), "writes" (rule to data), "derives" (data to data) or "produces" (point to data)."""

    source: str
    target: str
    kind: str


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    doc: str
    points: tuple[Point, ...]
    rules: tuple[RuleBox, ...]
    data: tuple[DataBox, ...]
    links: tuple[Link, ...]


def picture(graph: nx.DiGraph) -> Picture:
    points = tuple(_point(graph.nodes[key]["node"]) for key in _lifecycle(graph))
    rules = tuple(_rule(graph, node) for node in _nodes(graph, n.RuleNode))
    kinds = (n.ObservedNode, n.StateNode, n.SummaryNode, n.ZoneNode)
    data = tuple(_data(node) for kind in kinds for node in _nodes(graph, kind))
    return Picture(graph.graph["method"], graph.graph["doc"], points, rules, data, _links(graph))


def _nodes(graph: nx.DiGraph, kind: type) -> list[n.Node]:
    return [data["node"] for _, data in graph.nodes(data=True) if isinstance(data["node"], kind)]


def _lifecycle(graph: nx.DiGraph) -> list[str]:
    order = [(a, b) for a, b, data in graph.edges(data=True) if isinstance(data["edge"], n.Follows)]
    return list(nx.topological_sort(nx.DiGraph(order)))


def _point(node: n.Node) -> Point:
    return Point(node.key, node.name, "stage" if isinstance(node, n.Stage) else "hook")


def _rule(graph: nx.DiGraph, node: n.RuleNode) -> RuleBox:
    hooks = tuple(sorted(k for k in graph.predecessors(node.key) if isinstance(graph.nodes[k]["node"], n.HookNode)))
    lines = [("guard", f"{word} {text}") for word, text in (("for", node.layers), ("when", node.when)) if text]
    inside = [(data["edge"].order, graph.nodes[key]["node"]) for _, key, data in graph.out_edges(node.key, data=True)]
    for _, part in sorted(inside, key=lambda entry: (entry[1].line, entry[0])):
        lines.append(_line(part))
    where = {True: ", inside the CUDA graph", False: ", outside the CUDA graph", None: ""}[node.captured]
    return RuleBox(node.key, hooks, f"line {node.line}{where}", tuple(lines))


def _line(part: n.Node) -> tuple[str, str]:
    if isinstance(part, n.ActionNode):
        return "action", part.text
    letters = f"[{', '.join(part.letters)}]" if part.letters else ""
    text = f"let {part.name}{letters} = {part.value}"
    return ("dead" if part.dead else "let"), text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _data(node: n.Node) -> DataBox:
    match node:
        case n.ObservedNode():
            return DataBox(node.key, "observed", node.tensor, ("queries of the step" if node.queries == "step" else f"queries {node.queries}",))
        case n.StateNode():
            letters = f"[{', '.join(node.letters)}]" if node.letters else ""
            notes = [f"{node.dtype}, line {node.line}"]
            if node.crosses_layers:
                notes.append("from layer to layer" + (", one step" if node.shared else ""))
            return DataBox(node.key, "state", f"{node.name}{letters}", tuple(notes))
        case n.SummaryNode():
            return DataBox(node.key, "summary", f"{node.name}[{', '.join(node.letters)}]", (node.value, f"line {node.line}"))
        case n.ZoneNode():
            place = f", line {node.line}" if node.line is not None else ""
            notes = (f"{node.scope} table, {node.position} positions", f"on {node.tier}{place}")
            return DataBox(node.key, "zone", node.name, (*(node.stores or ("raw K and V",)), *notes))
    raise AssertionError(f"{type(node).__name__} is no data")


def _links(graph: nx.DiGraph) -> tuple[Link, ...]:
    """Reads and writes of everything inside a rule, drawn once between the rule and the data."""
    found: dict[Link, None] = {}
    for source, target, data in graph.edges(data=True):
        first, second = graph.nodes[source]["node"], graph.nodes[target]["node"]
        match data["edge"]:
            case n.Reads() if not isinstance(first, n.LetNode):
                index = second.index if isinstance(second, n.RuleNode) else second.rule
                found.setdefault(Link(source, f"rule:{index}", "reads"))
            case n.Writes():
                found.setdefault(Link(f"rule:{first.rule}", target, "writes"))
            case n.Derives():
                found.setdefault(Link(source, target, "derives"))
            case n.Produces():
                found.setdefault(Link(source, target, "produces"))
    return tuple(found)
