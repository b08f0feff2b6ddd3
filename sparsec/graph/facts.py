"""The facts of a method: everything that serving, planning and people need to know and that its author never wrote.

`derive` takes the specialised method and the values that it was specialised with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.evaluate import evaluate
from sparsec.dsl.specialise import StaticValue, static_params
from sparsec.graph.counts import count_rules, read_rules
from sparsec.graph.formulas import RowFormula, row_formulas
from sparsec.graph.program import Program
from sparsec.graph.queries import Observed, observed, ring
from sparsec.graph.reuse import Capture, chunk_invariance, cross_head_reductions, graph_capture, prefix_reuse
from sparsec.graph.scope import Because, Flow, cross_layer_flow, position_rule, table_scope
from sparsec.graph.text import statement, text

FACTS_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredFact:
    """One stored component: `bits` per value, or None for a plain dtype; `block` values along `along` share a scale."""

    name: str
    letters: tuple[str, ...]
    dtype: str
    bits: int | None
    along: str | None
    block: int | None
    zero: bool


@dataclass(frozen=True, slots=True)
class ZoneFact:
    name: str
    tier: str
    stores: tuple[StoredFact, ...]  # empty: raw K and V in the model's dtype
    line: int | None


@dataclass(frozen=True, slots=True)
class StateFact:
    """per: what one value belongs to, from its letters; shared values live for one step."""

    name: str
    letters: tuple[str, ...]
    dtype: str
    initial: str
    shared: bool
    line: int


@dataclass(frozen=True, slots=True)
class SummaryFact:
    name: str
    letters: tuple[str, ...]
    dtype: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class ParamFact:
    """set_at: "compile" (static: a new artifact) or "request". bounds: what its value sizes: rows, ring, layout."""

    name: str
    unit: str
    default: str
    set_at: str
    bounds: tuple[str, ...]
    doc: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Action:
    """One statement that changes which rows are held or read. kind: evict, move, attend or blend."""

    kind: str
    text: str
    hooks: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Facts:
    method: str
    doc: str | None
    table: Because
    positions: Because
    page_size: int | None  # None: the engine's choice
    zones: tuple[ZoneFact, ...]
    split: Because
    states: tuple[StateFact, ...]
    summaries: tuple[SummaryFact, ...]
    observed: tuple[Observed, ...]
    ring: str | None
    actions: tuple[Action, ...]
    flow: tuple[Flow, ...]
    rows: tuple[RowFormula, ...]
    reuse: Because
    chunks: Because
    capture: Capture
    parallel: tuple[Because, ...]
    params: tuple[ParamFact, ...]
    fingerprint: str

    @property
    def observes(self) -> bool:
        """Whether attention must return scores."""
        return bool(self.observed)

    def lines(self, *kinds: str) -> tuple[int, ...]:
        """Spec lines of the actions of these kinds."""
        return tuple(action.line for action in self.actions if action.kind in kinds)

    def to_json(self) -> str:
        """Sorted and stable: the content of facts.json."""
        return json.dumps({"version": FACTS_VERSION, **asdict(self)}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def derive(special: Checked, static: Mapping[str, StaticValue] | None = None, original: Checked | None = None) -> Facts:
    """Facts of a specialised method. `original` names the static params, which the specialised method no longer has."""
    static = static or {}
    program = Program(special)
    counts = count_rules(special)
    newest = ring(program)
    page_size = static.get("page_size", scheduled_page_size(special.method))
    return Facts(
        method=special.method.name.text,
        doc=special.method.doc,
        table=table_scope(program, counts),
        positions=position_rule(program),
        page_size=page_size if isinstance(page_size, int) else None,
        zones=tuple(_zone(zone) for zone in program.zones),
        split=_split(program),
        states=tuple(_state(state) for state in special.method.of(t.State)),
        summaries=tuple(_summary(item) for item in special.method.of(t.Summary)),
        observed=observed(program),
        ring=text(newest) if newest is not None else None,
        actions=_actions(program),
        flow=cross_layer_flow(program),
        rows=row_formulas(program, counts, read_rules(special)),
        reuse=prefix_reuse(program),
        chunks=chunk_invariance(program),
        capture=graph_capture(program),
        parallel=cross_head_reductions(program),
        params=_params(original or special, program),
        fingerprint=fingerprint(special.method, static),
    )


def scheduled_page_size(method: t.Method) -> int | None:
    """Of a specialised method whose `schedule` sets it."""
    entries = (entry for schedule in method.of(t.Schedule) for entry in schedule.entries)
    sizes = [evaluate(entry.value, {}) for entry in entries if entry.name.text == "page_size"]
    assert all(isinstance(size, int) for size in sizes), "a scheduled page size is compiled in: S705 refuses others"
    return sizes[0] if sizes else None


def fingerprint(method: t.Method, static: Mapping[str, StaticValue], model: Mapping[str, object] | None = None) -> str:
    """SHA-256 of the meaning: the specialised tree without comments, docs, checks and schedule, its values, the model's facts."""
    meaning = [item for item in method.items if not isinstance(item, t.Cite | t.Ensure | t.Invariant | t.Schedule | t.Param)]
    params = [(p.name.text, p.unit.text, repr(p.bound), repr(p.default)) for p in method.of(t.Param)]
    values = sorted((name, repr(value)) for name, value in static.items())
    facts = sorted((name, repr(value)) for name, value in (model or {}).items())
    return sha256(repr((params, meaning, values, facts)).encode()).hexdigest()


def _actions(program: Program) -> tuple[Action, ...]:
    found = program.effects((t.Evict, t.Move, t.Attend, t.Blend))
    return tuple(Action(type(e.stmt).__name__.lower(), statement(e.stmt), rule.names, e.line) for rule, e in found)


def _zone(zone: t.Zone) -> ZoneFact:
    tier = zone.tier.text if zone.tier is not None else "gpu"
    line = zone.span.line if zone.has_body or zone.span.end else None
    return ZoneFact(zone.name.text, tier, tuple(_store(store) for store in zone.stores), line)


def _store(store: t.Store) -> StoredFact:
    dtype = store.dtype
    keywords = {keyword.name.text: keyword.value for keyword in dtype.keywords}
    bits, block = (dtype.args[0] if dtype.name.text == "int" and dtype.args else None), keywords.get("block")
    return StoredFact(
        store.target.name.text,
        _letters(store.target),
        dtype.name.text,
        bits.value if isinstance(bits, t.Int) else None,
        text(keywords["along"]) if "along" in keywords else None,
        block.value if isinstance(block, t.Int) else None,
        "zero" in keywords and text(keywords["zero"]) == "true",
    )


def _letters(target: t.Ref) -> tuple[str, ...]:
    return tuple(text(index) for index in target.indices)


def _dtype(dtype: t.Dtype) -> str:
    return f"set[{dtype.letter}]" if dtype.letter is not None else dtype.name.text


def _state(state: t.State) -> StateFact:
    letters = _letters(state.target)
    name = state.target.name.text
    return StateFact(name, letters, _dtype(state.dtype), text(state.initial), state.shared, state.span.line)


def _summary(item: t.Summary) -> SummaryFact:
    target = item.target
    return SummaryFact(target.name.text, _letters(target), _dtype(item.dtype), text(item.value), item.span.line)


def _split(program: Program) -> Because:
    for _, effect in program.effects(t.Move):
        if effect.stmt.component is not None:
            return Because("yes", f"K and V of a row move apart at line {effect.line}", effect.line)
    return Because("no", "K and V of a row stay in one zone", None)


def _params(original: Checked, program: Program) -> tuple[ParamFact, ...]:
    static = static_params(original.method)
    ring_names = _closure(program, [node for node in (ring(program),) if node is not None])
    row_names = _closure(program, _counting(program))
    facts = []
    for param in original.method.of(t.Param):
        name = param.name.text
        bounds = [word for word, names in (("rows", row_names), ("ring", ring_names)) if name in names]
        set_at = "compile" if name in static else "request"
        facts.append(ParamFact(name, param.unit.text, text(param.default), set_at, tuple(bounds), param.doc, param.span.line))
    return tuple(facts)


def _counting(program: Program) -> list[t.Node]:
    """The places where a value becomes a number of rows."""
    rules = (*count_rules(program.checked), *read_rules(program.checked))
    return [node for rule in rules for node in (rule.rows, rule.when, *(let.value for let in rule.lets)) if node is not None]


def _closure(program: Program, nodes: list[t.Node]) -> frozenset[str]:
    return frozenset().union(*(program.reads(node, None) for node in nodes))
