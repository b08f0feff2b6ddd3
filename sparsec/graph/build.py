"""From a specialised method to its hook graph: the lifecycle with the rules, lets, sets, actions and storage that hang on it."""

from __future__ import annotations

import networkx as nx

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.graph import nodes as n
from sparsec.graph.passes import run_passes
from sparsec.graph.program import LIFECYCLE, Effect, Program, Rule
from sparsec.graph.spec import verify
from sparsec.graph.text import statement, text

_STAGES = {"projections": (), "attention": LIFECYCLE[:5], "sampling": LIFECYCLE[:8]}  # hooks before each
_PAYLOAD = frozenset({"K", "V", "K_raw", "KV_raw", "pos"})


def build_graph(checked: Checked) -> nx.DiGraph:
    """The verified graph with every pass applied."""
    program = Program(checked)
    return run_passes(verify(_Builder(program).graph, "build"), program)


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program, self.graph = program, nx.DiGraph(method=program.method.name.text, doc=program.method.doc or "")
        for zone in program.zones:
            tier = zone.tier.text if zone.tier is not None else "gpu"
            stores = tuple(f"{text(store.target)}: {_dtype(store.dtype)}" for store in zone.stores)
            self._node(n.ZoneNode(zone.name.text, tier, stores, zone.span.line if zone.has_body or zone.span.end else None))
        for name, state in program.states.items():
            self._node(n.StateNode(name, _letters(state.target), _dtype(state.dtype), state.shared, state.span.line))
        for name, item in program.summaries.items():
            node = self._node(n.SummaryNode(name, _letters(item.target), text(item.value), item.span.line))
            for zone in program.zones:
                self._edge(f"zone:{zone.name}", node, n.Derives())
        self._lifecycle()
        for rule in program.rules:
            self._rule(rule)

    def _node(self, node: n.Node) -> str:
        self.graph.add_node(node.key, node=node)
        return node.key

    def _edge(self, source: str, target: str, edge: n.Edge) -> None:
        if not self.graph.has_edge(source, target):
            self.graph.add_edge(source, target, edge=edge)

    def _lifecycle(self) -> None:
        used = {name for rule in self.program.rules for name in rule.names}
        points: list[n.Node] = []
        done: set[str] = set()
        for stage, before in _STAGES.items():
            points += [n.HookNode(name) for name in before if name in used - done]
            points.append(n.Stage(stage))
            done |= set(before)
        points += [n.HookNode(name) for name in LIFECYCLE if name in used - done]
        keys = [self._node(point) for point in points]
        for source, target in zip(keys, keys[1:], strict=False):
            self._edge(source, target, n.Follows())

    def _rule(self, rule: Rule) -> None:
        layers, when = (text(guard) if guard is not None else None for guard in (rule.hook.layers, rule.hook.when))
        key = self._node(n.RuleNode(rule.index, layers, when, rule.line))
        for name in rule.names:
            self._edge(f"hook:{name}", key, n.Fires())
        for guard in (rule.hook.layers, rule.hook.when):
            if guard is not None:
                self._reads(guard, rule, key)
        for order, let in enumerate(rule.lets):
            node = n.LetNode(rule.index, let.target.name.text, _letters(let.target), text(let.value), let.span.line)
            self._edge(key, self._node(node), n.Contains(order))
        for let in rule.lets:
            self._reads(let.value, rule, f"let:{rule.index}:{let.target.name}")
        for index, effect in enumerate(rule.effects):
            self._action(rule, index, effect)

    def _action(self, rule: Rule, index: int, effect: Effect) -> None:
        stmt = effect.stmt
        kind = "update" if isinstance(stmt, t.Assign) else type(stmt).__name__.lower()
        key = self._node(n.ActionNode(rule.index, index, kind, statement(stmt), effect.line))
        self._edge(f"rule:{rule.index}", key, n.Contains(len(rule.lets) + index))
        if effect.when is not None and effect.when is not rule.hook.when:
            self._reads(effect.when, rule, key)
        match stmt:
            case t.Assign():
                self._reads(stmt.value, rule, key)
                self._edge(key, f"state:{stmt.target.name}", n.Writes())
            case t.Blend():
                for part in (stmt.key, stmt.value, stmt.times):
                    self._reads(part, rule, key)
            case t.Evict() | t.Attend() | t.Move():
                rows = stmt.rows if isinstance(stmt, t.Move) else stmt.keep if isinstance(stmt, t.Evict) else stmt.read
                self._set(rule, index, rows, key, effect.line)
        if isinstance(stmt, t.Evict):
            for zone in self.program.zones:
                self._edge(key, f"zone:{zone.name}", n.Writes())
        if isinstance(stmt, t.Move):
            for word in (*_named(stmt.rows), stmt.zone.text):
                if f"zone:{word}" in self.graph:
                    self._edge(key, f"zone:{word}", n.Writes())

    def _set(self, rule: Rule, index: int, rows: t.Node, action: str, line: int) -> None:
        granularity = tuple(sorted(self.program.free(rows, rule) & {"h", "g", "i"}))
        key = self._node(n.SetNode(rule.index, index, text(rows), granularity, line))
        self._edge(key, action, n.Chooses())
        self._reads(rows, rule, key)

    def _reads(self, expr: t.Node, rule: Rule, reader: str) -> None:
        """Edges from everything that the expression names directly; scores are added by the pass that resolves them."""
        for word in _named(expr):
            for prefix in (f"let:{rule.index}", "state", "summary", "zone"):
                if f"{prefix}:{word}" in self.graph:
                    self._edge(f"{prefix}:{word}", reader, n.Reads())
                    break
            else:
                if word in _PAYLOAD:
                    for zone in self.program.zones:
                        self._edge(f"zone:{zone.name}", reader, n.Reads())


def _named(expr: t.Node) -> list[str]:
    """Names in an expression; the part in `rows(zone, K)` is no payload."""
    parts = {id(arg) for node in t.walk(expr) if isinstance(node, t.Call) and node.name.text == "rows" for arg in node.args[1:]}
    return [node.name.text for node in t.walk(expr) if isinstance(node, t.Ref) and id(node) not in parts]


def _letters(target: t.Ref) -> tuple[str, ...]:
    return tuple(text(index) for index in target.indices)


def _dtype(dtype: t.Dtype) -> str:
    if dtype.letter is not None:
        return f"set[{dtype.letter}]"
    arguments = [text(part) for part in (*dtype.args, *dtype.keywords)]
    return dtype.name.text + (f"({', '.join(arguments)})" if arguments else "")
