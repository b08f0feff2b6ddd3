"""A method as the graph and the facts see it: rules in order, their effects one by one, and what an expression reads.

A rule is one `on ... { }` item. Names are resolved through the rule's lets; nothing here knows counts or facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked

ATTENTION_INPUTS = frozenset({"Q", "probs", "logits"})
SET_OPS = frozenset({"top", "bottom", "nucleus", "filter"})
LIFECYCLE = (
    "kv_write",
    "build_prefill_selection",
    "build_decode_selection",
    "before_prefill_attention",
    "before_decode_attention",
    "after_prefill_attention",
    "after_decode_attention",
    "layer_end",
    "end_of_prompt",
    "finish_step",
    "probe_attention",
)


@dataclass(frozen=True, slots=True)
class Effect:
    """One statement of a rule that changes something, with every condition that it stands under."""

    stmt: t.Stmt
    when: t.Expr | None
    lets: tuple[t.Let, ...]  # visible here, in source order
    stale: frozenset[str]  # lets whose counts were taken before an earlier evict or move of this rule

    @property
    def line(self) -> int:
        return self.stmt.span.line


@dataclass(frozen=True, slots=True)
class Rule:
    index: int
    hook: t.Hook
    effects: tuple[Effect, ...]
    lets: tuple[t.Let, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name.text for name in self.hook.names)

    @property
    def line(self) -> int:
        return self.hook.span.line


class Program:
    """A checked method with its rules taken apart. Cheap to build; everything else is computed once, on demand."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.method = checked.method
        self.letters = frozenset(checked.letters)
        self._reads: dict[int, dict[str, frozenset[str]]] = {}  # by rule, then by let
        self._free: dict[int, dict[str, frozenset[str]]] = {}

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(_rule(index, hook) for index, hook in enumerate(self.method.of(t.Hook)))

    @cached_property
    def params(self) -> dict[str, t.Param]:
        return {param.name.text: param for param in self.method.of(t.Param)}

    @cached_property
    def zones(self) -> tuple[t.Zone, ...]:
        """Declared zones, or the one that every method has."""
        return self.method.of(t.Zone) or (t.Zone(t.Ident("main"), None, (), has_body=False),)

    @cached_property
    def states(self) -> dict[str, t.State]:
        return {state.target.name.text: state for state in self.method.of(t.State)}

    @cached_property
    def summaries(self) -> dict[str, t.Summary]:
        return {item.target.name.text: item for item in self.method.of(t.Summary)}

    @cached_property
    def words(self) -> frozenset[str]:
        """Choice values: names that stand for themselves."""
        values: set[str] = set()
        for param in self.params.values():
            if param.unit.text == "choice" and param.bound is not None and isinstance(param.bound.low, t.SetLiteral):
                values |= {item.name.text for item in param.bound.low.items if isinstance(item, t.Ref)}
        return frozenset(values - set(self.params))

    def effects(self, kind: type[t.Stmt] | tuple[type[t.Stmt], ...]) -> Iterator[tuple[Rule, Effect]]:
        for rule in self.rules:
            for effect in rule.effects:
                if isinstance(effect.stmt, kind):
                    yield rule, effect

    def let(self, rule: Rule, name: str) -> t.Let | None:
        return next((let for let in reversed(rule.lets) if let.target.name.text == name), None)

    def reads(self, node: t.Node, rule: Rule | None) -> frozenset[str]:
        """Names that the value of `node` depends on, looking through lets; letters and choice values left out."""
        found: set[str] = set()
        stack: list[t.Node] = [node]
        while stack:
            current = stack.pop()
            if isinstance(current, t.Ref):
                found |= self._reads_of_name(current.name.text, rule)
                stack.extend(current.indices)
            elif isinstance(current, t.Call) and current.name.text == "rows":
                found.add("rows")
            else:
                stack.extend(t.children(current))
        return frozenset(found)

    def _reads_of_name(self, name: str, rule: Rule | None) -> frozenset[str]:
        known = self._let_reads(rule) if rule is not None else {}
        if name in known:
            return known[name]
        return frozenset() if name in self.letters or name in self.words else frozenset({name})

    def _let_reads(self, rule: Rule) -> dict[str, frozenset[str]]:
        """Filled in source order, so that a long chain of lets is no deep recursion."""
        if rule.index not in self._reads:
            known = self._reads[rule.index] = {}
            for let in rule.lets:
                name = let.target.name.text
                known[name] = known.get(name, frozenset()) | self.reads(let.value, rule) | {name}
        return self._reads[rule.index]

    def free(self, node: t.Node, rule: Rule | None) -> frozenset[str]:
        """Index letters that the value of `node` varies with: of a let only those that its own value varies with."""
        if isinstance(node, t.Ref):
            return self._free_of_ref(node, rule)
        inner = frozenset().union(*(self.free(child, rule) for child in t.children(node)))
        if isinstance(node, t.Reduce):
            if node.op.text in ("apportion", "softmax", "maxpool", "avgpool", "cumsum"):
                return inner
            return inner - {binder.letter.text for binder in node.binders}
        return inner

    def _free_of_ref(self, node: t.Ref, rule: Rule | None) -> frozenset[str]:
        if not node.indices:
            return frozenset({node.name.text} & self.letters)
        known = self._let_free(rule) if rule is not None else {}
        indices = node.indices
        if node.name.text in known:
            varying = known[node.name.text]
            pairs = zip(self.let(rule, node.name.text).target.indices, indices, strict=False)
            indices = tuple(index for own, index in pairs if isinstance(own, t.Ref) and own.name.text in varying)
        return frozenset().union(*(self.free(index, rule) for index in indices))

    def _let_free(self, rule: Rule) -> dict[str, frozenset[str]]:
        """Letters that each let truly varies with; filled in source order."""
        if rule.index not in self._free:
            known = self._free[rule.index] = {}
            for let in rule.lets:
                name = let.target.name.text
                known[name] = known.get(name, frozenset()) | self.free(let.value, rule)
        return self._free[rule.index]

    @cached_property
    def tainted(self) -> dict[str, int]:
        """States whose value depends on Q, probs or logits, with the line of the first such write; to a fixpoint."""
        found: dict[str, int] = {}
        writes = list(self.effects(t.Assign))
        while True:
            before = len(found)
            for rule, effect in writes:
                reads = self.reads(effect.stmt.value, rule)
                if effect.when is not None:
                    reads |= self.reads(effect.when, rule)
                if reads & (ATTENTION_INPUTS | set(found)):
                    found.setdefault(effect.stmt.target.name.text, effect.line)
            if len(found) == before:
                return found


def conjunction(*conditions: t.Expr | None) -> t.Expr | None:
    present = [condition for condition in conditions if condition is not None]
    return reduce(lambda left, right: t.Binary("and", left, right), present) if present else None


def _rule(index: int, hook: t.Hook) -> Rule:
    effects: list[Effect] = []
    lets: list[t.Let] = []
    moved: list[frozenset[str]] = [frozenset()]

    def visit(body: tuple[t.Stmt, ...], when: t.Expr | None) -> None:
        for stmt in body:
            if isinstance(stmt, t.Let):
                lets.append(stmt)
            elif isinstance(stmt, t.Branch):
                visit(stmt.then, conjunction(when, stmt.condition))
                visit(stmt.otherwise, conjunction(when, t.Unary("not", stmt.condition)))
            else:
                effects.append(Effect(stmt, when, tuple(lets), moved[0]))
                if isinstance(stmt, t.Evict | t.Move):
                    moved[0] = frozenset(let.target.name.text for let in lets)

    visit(hook.body, hook.when)
    return Rule(index, hook, tuple(effects), tuple(lets))
