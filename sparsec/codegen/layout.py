"""How the rows of a method are stored: zones and codecs, position rule, table scope, states, the ring of queries."""

from __future__ import annotations

from sparsec.codegen.lower import host
from sparsec.codegen.lower.hooks import lower_summaries
from sparsec.codegen.lower.scope import Names
from sparsec.codegen.lower.walks import ops_of
from sparsec.codegen.plan import Binding, CodecPlan, Evict, LayoutPlan, Move, StatePlan, ZonePlan, canonical
from sparsec.codegen.unsupported import unsupported
from sparsec.dsl import tree as t
from sparsec.dsl.fold import number, truth
from sparsec.graph.facts import Facts
from sparsec.graph.program import Program
from sparsec.graph.queries import ring


def plan_layout(names: Names, bindings: tuple[Binding, ...], facts: Facts, program: Program) -> LayoutPlan:
    newest = ring(program)
    zones = names.method.of(t.Zone)
    moves = [step for b in bindings for step in b.steps if isinstance(step, Move)]
    reads = {op.detail[0] for b in bindings for op in ops_of(b.steps) if op.name == "of_queries"}
    return LayoutPlan(
        scope=facts.table.value,
        position=facts.positions.value,
        page_size=facts.page_size,
        ring=host.text(newest, host.Where(names)) if newest is not None else None,
        zones=tuple(_zone(z) for z in zones) or (ZonePlan("main", None, None),),
        split=any(move.part is not None for move in moves),
        states=tuple(_state(item) for item in names.states.values()),
        summaries=lower_summaries(names),
        evicts=any(isinstance(step, Evict) for b in bindings for step in b.steps),
        observes=bool(reads & {"probs", "logits"}),
    )


def _rope_rule(decode: t.Decode) -> str | None:
    value = decode.value
    if not (isinstance(value, t.Call) and value.name.text == "rope"):
        return None
    where = value.args[1]
    return "rank" if isinstance(where, t.Call) and where.name.text == "order" else "logical"


def _zone(zone: t.Zone) -> ZonePlan:
    if zone.tier is not None and zone.tier.text != "gpu":
        unsupported(f"a zone at `{zone.tier}`", zone.tier.span, "leave `at ...` out: all zones lie beside the model", "S912")
    stores = {store.target.name.text: store for store in zone.stores}
    parts: dict[str, CodecPlan | None] = {"K": None, "V": None}
    for decode in zone.decodes:
        part, value = decode.target.name.text, decode.value
        if _rope_rule(decode) is not None:
            continue
        if part not in parts or not isinstance(value, t.Ref) or value.name.text not in stores:
            unsupported("this decode", decode.span, f"write `decode {part}[t, h, c] = STORE[t, h, c]`", "S913")
        store = stores[value.name.text]
        raw = store.dtype.name.text == "model" and isinstance(store.value, t.Ref) and store.value.name.text == part
        parts[part] = None if raw else _codec(store, part)
    return ZonePlan(zone.name.text, parts["K"], parts["V"])


def _codec(store: t.Store, part: str) -> CodecPlan:
    dtype = store.dtype
    options = {k.name.text: k.value for k in dtype.keywords}
    if dtype.name.text != "int" or not isinstance(store.value, t.Ref) or store.value.name.text != part or "rotate" in options:
        unsupported("this store", store.span, f"write `store NAME[t, h, c]: int(bits, along = t, block = 32, zero = true) = {part}[t, h, c]`", "S913")
    bits, block = number(dtype.args[0]), number(options["block"])
    assert isinstance(bits, int) and isinstance(block, int), "bits and block are static params: specialise makes them numbers"
    zero = options.get("zero")
    return CodecPlan(store.target.name.text, bits, options["along"].name.text, block, zero is not None and truth(zero) is True)


_INITIAL = {"all": "True", "none": "False", "true": "True", "false": "False"}


def _state(item: t.State) -> StatePlan:
    letters = {str(i.name) for i in item.target.indices} | ({item.dtype.letter.text} if item.dtype.letter else set())
    value = number(item.initial)
    if value is None and not (isinstance(item.initial, t.Ref) and item.initial.name.text in _INITIAL):
        unsupported("this initial value", item.initial.span, "use a number, true, false, all or none", "S902")
    initial = str(value) if value is not None else _INITIAL[item.initial.name.text]
    dtype = "bool" if item.dtype.name.text == "set" else item.dtype.name.text
    return StatePlan(item.target.name.text, canonical(letters), dtype, initial, item.shared)
