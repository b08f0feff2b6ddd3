"""Table scope, position rule and cross-layer flow: what the counts and the zones of a method say about its storage."""

from __future__ import annotations

from dataclasses import dataclass

from sparsec.dsl import tree as t
from sparsec.graph.counts import CountRule
from sparsec.graph.program import Effect, Program, Rule
from sparsec.graph.text import text


@dataclass(frozen=True, slots=True)
class Because:
    """A derived value with the sentence that justifies it and the spec line that decided (None: nothing in the spec did)."""

    value: str
    why: str
    line: int | None


def table_scope(program: Program, counts: tuple[CountRule, ...]) -> Because:
    """shared, layer or head: the coarsest table over which every layer and head holds the same number of rows."""
    for rule in counts:
        reason = _differs_by_head(program, rule)
        if reason:
            return Because("head", f"{reason}, so KV heads hold different numbers of rows", rule.line)
    for rule in counts:
        reason = _differs_by_layer(program, rule)
        if reason:
            return Because("layer", f"{reason}, so layers hold different numbers of rows", rule.line)
    if not counts:
        return Because("shared", "no row is ever evicted or moved", None)
    return Because("shared", "every layer and KV head holds the same number of rows", counts[0].line)


def _differs_by_head(program: Program, rule: CountRule) -> str:
    if rule.per != "head":
        return "heads compete for one budget"
    scope, effect = _site(program, rule)
    guard = effect.when
    if guard is not None and "h" in program.free(guard, scope):
        return "a condition differs per head"
    if rule.varies == "head":
        return "the scores decide how many rows this keeps"
    if any(isinstance(node, t.Reduce) and node.op.text == "nucleus" for node in t.walk(effect.stmt)):
        return "the scores decide how many rows are kept"
    return ""


def _differs_by_layer(program: Program, rule: CountRule) -> str:
    scope, effect = _site(program, rule)
    if scope.hook.layers is not None:
        return f"only some layers do this (for {text(scope.hook.layers)})"
    exprs = [rule.rows] + ([effect.when] if effect.when is not None else [])
    if any("layer" in program.reads(expr, scope) for expr in exprs):
        return "a count depends on the layer"
    if effect.when is not None and rule.when != effect.when:
        return "a condition depends on tensors, which differ per layer"
    if rule.varies == "layer":
        return "the scores decide how many rows this keeps"
    return ""


def _site(program: Program, rule: CountRule) -> tuple[Rule, Effect]:
    scope = program.rules[rule.rule]
    return scope, next(effect for effect in scope.effects if effect.line == rule.line)


def position_rule(program: Program) -> Because:
    """rank where a zone decodes K at `order(t)`, else logical."""
    for zone in program.zones:
        for decode in zone.decodes:
            if any(isinstance(node, t.Call) and node.name.text == "order" for node in t.walk(decode.value)):
                return Because("rank", f"zone {zone.name} rotates K at its rank among the rows held", decode.span.line)
    return Because("logical", "K and Q are rotated at the token's position in the sequence", None)


@dataclass(frozen=True, slots=True)
class Flow:
    """A value that one layer writes and others read: (line, hooks, layers) of each writer and reader."""

    state: str
    within_step: bool
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    line: int


def cross_layer_flow(program: Program) -> tuple[Flow, ...]:
    """States declared `shared` (one step) or over `l` (kept), with who writes and who reads them."""
    flows = []
    for name, state in program.states.items():
        over_layers = any(isinstance(index, t.Ref) and index.name.text == "l" for index in state.target.indices)
        if not (state.shared or over_layers):
            continue
        writers = [rule for rule, effect in program.effects(t.Assign) if effect.stmt.target.name.text == name]
        readers = [rule for rule in program.rules if any(name in _reads(program, rule, effect) for effect in rule.effects)]
        flows.append(Flow(name, state.shared, _where(writers), _where(readers), state.span.line))
    return tuple(flows)


def _reads(program: Program, rule: Rule, effect: Effect) -> frozenset[str]:
    stmt = effect.stmt
    nodes = [child for child in t.children(stmt) if not isinstance(child, t.Ident)]
    if isinstance(stmt, t.Assign):
        nodes = [stmt.value]
    return frozenset().union(*(program.reads(node, rule) for node in nodes))


def _where(rules: list[Rule]) -> tuple[str, ...]:
    seen = {rule.index: rule for rule in rules}
    return tuple(
        f"{' and '.join(rule.names)} for {text(rule.hook.layers)} (line {rule.line})"
        if rule.hook.layers is not None
        else f"{' and '.join(rule.names)} in every layer (line {rule.line})"
        for rule in seen.values()
    )
