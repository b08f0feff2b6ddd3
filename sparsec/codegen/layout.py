"""How the rows of a method are stored: zones and codecs, position rule, table scope, states, the ring of queries."""

from __future__ import annotations

from sparsec.codegen.lower import host
from sparsec.codegen.lower.hooks import lower_summaries
from sparsec.codegen.lower.scope import Names
from sparsec.codegen.lower.walks import ops_of
from sparsec.codegen.plan import Binding, CodecPlan, Evict, LayoutPlan, Move, Op, StatePlan, ZonePlan, canonical, walk
from sparsec.codegen.unsupported import unsupported
from sparsec.dsl import tree as t
from sparsec.dsl.fold import number, truth


def plan_layout(names: Names, bindings: tuple[Binding, ...], scope: str, page_size: int | None) -> LayoutPlan:
    zones = names.method.of(t.Zone)
    moves = [step for b in bindings for step in b.steps if isinstance(step, Move)]
    reads = {op.detail[0] for b in bindings for op in ops_of(b.steps) if op.name == "of_queries"}
    return LayoutPlan(
        scope=scope,
        position=_position(zones),
        page_size=page_size,
        ring=_ring(names),
        zones=tuple(_zone(z) for z in zones) or (ZonePlan("main", None, None),),
        split=any(move.part is not None for move in moves),
        states=tuple(_state(item) for item in names.states.values()),
        summaries=lower_summaries(names),
        evicts=any(isinstance(step, Evict) for b in bindings for step in b.steps),
        observes=bool(reads & {"probs", "logits"}),
    )


def head_counts_differ(bindings: tuple[Binding, ...]) -> bool:
    """Heads of a layer may end up with different counts: they compete, or the count has h free."""
    keeps = [step.keep for b in bindings for step in b.steps if isinstance(step, Evict)]
    return any(_ragged(keep) for keep in keeps)


def _ragged(keep: Op) -> bool:
    if keep.name not in ("keep", "rank"):
        return any(_ragged(arg) for arg in keep.args)
    letters = str(keep.detail[1]).split(",") if keep.name == "keep" else keep.detail[1:]
    counts = [arg for arg in keep.args if arg.kind in ("int", "ratio")]
    return "h" in letters or any("h" in _origin(count).free for count in counts)


def _origin(op: Op) -> Op:
    """The value before it was given further axes of size 1."""
    while op.name == "widen":
        op = op.args[0]
    return op


def layer_counts_differ(bindings: tuple[Binding, ...]) -> bool:
    """Layers may hold different counts: a guard or a kept count depends on the layer."""
    for binding in bindings:
        locals_ = {s.name: s.value for s in binding.steps if hasattr(s, "name") and hasattr(s, "value")}
        for step in binding.steps:
            if isinstance(step, Evict | Move) and (binding.guard is not None or _reads_layer(step, locals_)):
                return True
    return False


def _reads_layer(step: Evict | Move, locals_: dict[str, Op]) -> bool:
    root = step.keep if isinstance(step, Evict) else step.rows
    todo = [root] + ([step.when] if step.when is not None else [])
    seen: set[str] = set()
    while todo:
        for op in walk(todo.pop()):
            if op.name == "layer":
                return True
            if op.name == "local" and op.detail[0] not in seen:
                seen.add(str(op.detail[0]))
                if op.detail[0] in locals_ and op.kind in ("int", "ratio", "bool"):
                    todo.append(locals_[str(op.detail[0])])
    return False


def _position(zones: tuple[t.Zone, ...]) -> str:
    rules = {_rope_rule(d) for zone in zones for d in zone.decodes if d.target.name.text == "K"} - {None}
    return rules.pop() if len(rules) == 1 else "logical"


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
        parts[part] = _codec(stores[value.name.text], part)
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
    return StatePlan(item.target.name.text, canonical(letters), item.dtype.name.text, initial, item.shared)


def _ring(names: Names) -> str:
    """The largest window of queries that any hook reads."""
    found: dict[str, None] = {}
    for hook in names.method.of(t.Hook):
        lets = {s.target.name.text: s.value for s in t.walk(hook) if isinstance(s, t.Let)}
        for node in t.walk(hook):
            if isinstance(node, t.Binder) and node.letter.text == "i" and isinstance(node.within, t.Call):
                found[host.text(_inlined(node.within.args[0], lets), host.Where(names))] = None
    texts = list(found)
    return "0" if not texts else texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def _inlined(expr: t.Expr, lets: dict[str, t.Expr]) -> t.Expr:
    if isinstance(expr, t.Ref) and not expr.indices and expr.name.text in lets:
        return _inlined(lets[expr.name.text], lets)
    return expr
