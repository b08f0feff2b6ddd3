"""A method laid out for interpretation: its declarations by name, the values of its params, the facts of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparsec.dsl import tree as t
from sparsec.reference.values import Scalar


class Unsupported(Exception):
    """The oracle does not know a construct. `what` names it, `line` is the line of the spec."""

    def __init__(self, what: str, node: t.Node) -> None:
        self.what, self.line = what, node.span.line
        super().__init__(f"the reference interpreter does not know {what} (line {self.line})")


@dataclass(frozen=True, slots=True)
class Program:
    """`facts` are the model's: n_layers, kv_heads, group, head_dim, kv_width, scale, and the configured chunk."""

    method: t.Method
    params: Mapping[str, Scalar]
    facts: Mapping[str, Scalar]
    states: Mapping[str, t.State]
    summaries: Mapping[str, t.Summary]
    stores: Mapping[str, t.Store]
    weights: Mapping[str, t.Weight]
    layers: Mapping[str, t.Layers]
    zones: tuple[t.Zone, ...]
    domains: Mapping[str, t.Domain]  # by letter
    words: frozenset[str]  # names of choice params: what is compared with one is a word

    @classmethod
    def of(cls, method: t.Method, params: Mapping[str, Scalar], facts: Mapping[str, Scalar]) -> Program:
        zones = method.of(t.Zone) or (t.Zone(t.Ident("rows"), None, ()),)

        def named(items: tuple) -> dict:
            return {item.target.name.text: item for item in items}

        return cls(
            method,
            params,
            facts,
            named(method.of(t.State)),
            named(method.of(t.Summary)),
            named(tuple(store for zone in zones for store in zone.stores)),
            {weight.name.text: weight for weight in method.of(t.Weight)},
            {group.name.text: group for group in method.of(t.Layers)},
            zones,
            {domain.letter.text: domain for domain in method.of(t.Domain)},
            frozenset(param.name.text for param in method.of(t.Param) if param.unit.text == "choice"),
        )

    def zone_index(self, name: str) -> int | None:
        return next((n for n, zone in enumerate(self.zones) if zone.name.text == name), None)

    def part_of(self, store: str) -> str:
        """Whether a store holds rows' K or V: the part whose decode reads it, directly or through another decode."""
        for zone in self.zones:
            if store not in {entry.target.name.text for entry in zone.stores}:
                continue
            reads = {entry.target.name.text: _names(entry.value) for entry in zone.decodes}
            if "V" in reads and store in _closure(reads, "V") and store not in _closure(reads, "K"):
                return "V"
        return "K"


def _names(expr: t.Expr) -> set[str]:
    return {node.name.text for node in t.walk(expr) if isinstance(node, t.Ref)}


def _closure(reads: dict[str, set[str]], start: str) -> set[str]:
    """Every name that decoding `start` reads."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in reads.get(todo.pop(), set()) - seen:
            seen.add(name)
            todo.append(name)
    return seen
