"""What may be reused and what may run where: prefix reuse, chunk invariance, graph capture, tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from sparsec.dsl import tree as t
from sparsec.dsl.phases import CHUNK, DECODE, PROMPT_END, can_fire
from sparsec.graph.program import ATTENTION_INPUTS, Effect, Program, Rule
from sparsec.graph.scope import Because
from sparsec.graph.text import text


def prefix_reuse(program: Program) -> Because:
    """radix: rows depend on the prefix alone; chain: only a whole earlier state can be continued."""
    for _, effect in program.effects(t.Evict):
        return Because("chain", f"no radix reuse, because rows are evicted at line {effect.line}", effect.line)
    for rule, effect in program.effects(t.Move):
        if program.reads(effect.stmt.rows, rule) & (ATTENTION_INPUTS | set(program.tainted)):
            why = f"no radix reuse, because scores decide which rows change zone at line {effect.line}"
            return Because("chain", why, effect.line)
    for name, line in sorted(program.tainted.items(), key=lambda item: item[1]):
        if not program.states[name].shared:
            why = f"no radix reuse, because the state {name} depends on queries (line {line}) and outlives the step"
            return Because("chain", why, line)
    lossy = next((zone for zone in program.zones if zone.stores), None)
    if lossy is not None:
        why = f"rows depend on the prefix alone; those reused from {lossy.name} are read back decoded, not exact"
        return Because("radix", why, lossy.span.line)
    return Because("radix", "nothing is evicted and no lasting state depends on queries", None)


def chunk_invariance(program: Program) -> Because:
    """derived, declared or no: whether the kept sets are the same however the prompt is chunked."""
    obstacle = _depends_on_chunks(program)
    declared = next(iter(program.method.of(t.Invariant)), None)
    if obstacle is None:
        why = "nothing is evicted or moved before the prompt ends, and what is observed adds up over chunks"
        return Because("derived", why, declared.span.line if declared else None)
    if declared is not None:
        return Because("declared", f"declared by the author and tested, not proven ({obstacle[0]})", declared.span.line)
    return Because("no", *obstacle)


def _depends_on_chunks(program: Program) -> tuple[str, int] | None:
    for rule, effect in program.effects((t.Evict, t.Move, t.Attend, t.Assign)):
        if not (can_fire(rule.names, effect.when, CHUNK) or can_fire(rule.names, effect.when, PROMPT_END)):
            continue
        obstacle = _obstacle(program, rule, effect)
        if obstacle:
            return f"{obstacle} at line {effect.line}", effect.line
    return None


def _obstacle(program: Program, rule: Rule, effect: Effect) -> str:
    stmt = effect.stmt
    if isinstance(stmt, t.Evict | t.Move):
        word = "evicted" if isinstance(stmt, t.Evict) else "moved"
        return f"rows are {word} after every chunk" if can_fire(rule.names, effect.when, CHUNK) else ""
    if isinstance(stmt, t.Attend):
        bound = any(isinstance(n, t.Binder) and n.letter.text == "i" for n in t.walk(stmt))
        return "the queries of a chunk choose together" if bound else ""
    if program.states[stmt.target.name.text].shared or "finish_step" in rule.names and stmt.op == "=":
        return ""
    reads = program.reads(stmt.value, rule)
    if not reads & (ATTENTION_INPUTS | set(program.tainted)) or not can_fire(rule.names, effect.when, CHUNK):
        return ""
    adds = stmt.op == "+=" and isinstance(stmt.value, t.Reduce) and stmt.value.op.text == "sum"
    return "" if adds else f"the state {stmt.target.name.text} is rewritten by every chunk"


@dataclass(frozen=True, slots=True)
class Capture:
    """Whether the layers of a decode step fit one CUDA graph, and what runs outside it, with lines."""

    whole_step: bool
    outside: tuple[Because, ...]


def graph_capture(program: Program) -> Capture:
    """The layers are captured unless they touch host memory; compaction after the step always runs outside."""
    hosted = [zone for zone in program.zones if zone.tier is not None and zone.tier.text == "cpu"]
    outside = [Because(zone.name.text, "rows in host memory are fetched between layers", zone.span.line) for zone in hosted]
    for rule, effect in program.effects((t.Evict, t.Move)):
        if can_fire(rule.names, effect.when, DECODE):
            word = "eviction" if isinstance(effect.stmt, t.Evict) else "move"
            outside.append(Because("finish_step", f"{word} at line {effect.line}: its size changes from step to step", effect.line))
    return Capture(not outside, tuple(outside))


def cross_head_reductions(program: Program) -> tuple[Because, ...]:
    """What tensor parallelism must combine across ranks, since KV heads are sharded: one entry per reduction over h."""
    found: dict[tuple[str, int], Because] = {}
    for node in t.walk(program.method):
        if isinstance(node, t.Ensure) or not isinstance(node, t.Reduce):
            continue
        letters = {binder.letter.text for binder in node.binders}
        if letters & {"h", "x"}:
            form = f"{node.op.text}[{', '.join(b.letter.text for b in node.binders)}]"
            kind = "all-gather" if node.op.text in ("top", "bottom", "nucleus", "apportion", "softmax") else "all-reduce"
            found.setdefault((form, node.span.line), Because(form, f"{kind} over ranks: {text(node)}", node.span.line))
    return tuple(found.values())
