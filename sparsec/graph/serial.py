"""A hook graph as plain data: sorted and stable, the content of graph.json."""

from __future__ import annotations

import json
from dataclasses import asdict

import networkx as nx

GRAPH_VERSION = 1


def graph_data(graph: nx.DiGraph) -> dict[str, object]:
    nodes = [{"key": key, "kind": type(data["node"]).__name__, **asdict(data["node"])} for key, data in sorted(graph.nodes(data=True))]
    edges = [
        {"from": source, "to": target, "kind": type(data["edge"]).__name__, **asdict(data["edge"])}
        for source, target, data in sorted(graph.edges(data=True), key=lambda edge: edge[:2])
    ]
    return {"version": GRAPH_VERSION, "method": graph.graph["method"], "nodes": nodes, "edges": edges}


def graph_json(graph: nx.DiGraph) -> str:
    return json.dumps(graph_data(graph), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
