"""S604: a shared state is not read, for the actual layers, before its first writer in a step.

Layers are enumerated with the defaults of the params and, where one is given, the model's number of layers. What
cannot be decided without a model is left to the check that runs with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparsec.dsl import names
from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.defaults import default_values
from sparsec.dsl.evaluate import EvaluationError, Value, evaluate
from sparsec.dsl.paths import Place, conditions_of, places, references

Turn = tuple[int, int]  # when within one layer: hook, then place in the file
_Use = tuple[t.Ref, Turn, Place]
_ORDER = {name: index for index, name in enumerate(names.HOOKS)}
_UNKNOWN_MODEL = 2  # layers beyond the largest literal that are enumerated where the model is unknown
_MOST = 128  # layers enumerated at most


@dataclass(frozen=True, slots=True)
class _Access:
    """One read or write of a shared state. `order` puts accesses of one layer into the order in which they run."""

    ref: t.Ref
    order: Turn
    layers: frozenset[int]


def check_shared_flow(ctx: Context) -> None:
    shared = [state for state in ctx.method.of(t.State) if state.shared]
    if not shared:
        return
    known = default_values(ctx)
    layers = [{**known, "layer": layer} for layer in range(_layer_count(ctx))]
    for phase in ("prefill", "decode"):
        reads, writes = _uses(ctx, phase, {state.target.name.text: state for state in shared})
        for state in shared:
            name = state.target.name.text
            try:
                found = [_accesses(ctx, uses.get(name, ()), layers) for uses in (reads, writes)]
            except EvaluationError:  # a guard needs a model
                continue
            _check_state(ctx, state, *found)


def _uses(ctx: Context, phase: str, shared: dict[str, t.State]) -> tuple[dict[str, list[_Use]], dict[str, list[_Use]]]:
    """Where each shared state is read and where it is written, by name, in one walk over the phase's statements."""
    reads: dict[str, list[_Use]] = {}
    writes: dict[str, list[_Use]] = {}
    for turn, place in _in_layers(ctx.method, phase):
        target = place.stmt.target if isinstance(place.stmt, t.Assign) else None
        if target is not None and target.name.text in shared:
            writes.setdefault(target.name.text, []).append((target, turn, place))
        for ref in references(place.stmt):
            name, symbol = ref.name.text, ctx.symbol_of(ref)
            if ref is not target and name in shared and symbol is not None and symbol.item is shared[name]:
                reads.setdefault(name, []).append((ref, turn, place))
    return reads, writes


def _accesses(ctx: Context, uses: Iterable[_Use], layers: list[dict[str, Value]]) -> list[_Access]:
    return [_Access(ref, turn, _layers_of(ctx, place, layers)) for ref, turn, place in uses]


def _check_state(ctx: Context, state: t.State, reads: list[_Access], writes: list[_Access]) -> None:
    first = min(((min(write.layers), write.order) for write in writes if write.layers), default=None)
    if first is None:  # nothing writes in this phase: its reads see the initial value
        return
    for read in reads:
        early = [layer for layer in read.layers if (layer, read.order) <= first]
        if early:
            name = state.target.name.text
            message = f"`{name}` is read at layer {min(early)}, but its first writer in a step is layer {first[0]}"
            helps = f"write it at an earlier layer, or guard the hook that reads it, e.g. `for layer > {first[0]}`"
            ctx.report("S604", read.ref, message, helps)


def _in_layers(method: t.Method, phase: str) -> Iterator[tuple[Turn, Place]]:
    """Statements of the hooks that run in every layer of a phase, each with its turn within a layer."""
    for hook in method.of(t.Hook):
        for ident in hook.names:
            entry = names.HOOKS.get(ident.text)
            if entry is not None and entry.per == "layer" and phase in entry.phases:
                yield from (((_ORDER[ident.text], place.stmt.span.start), place) for place in places(hook))


def _layers_of(ctx: Context, place: Place, layers: list[dict[str, Value]]) -> frozenset[int]:
    """The layers where a statement may run: static conditions decide, dynamic ones may hold."""
    static = [condition for condition in place.conditions if _is_static(ctx, condition)]
    return frozenset(index for index, known in enumerate(layers) if all(evaluate(one, known) for one in static))


def _is_static(ctx: Context, condition: t.Expr) -> bool:
    inner = condition.operand if isinstance(condition, t.Unary) and id(condition) not in ctx.types else condition
    return ctx.type_of(inner).static


def _layer_count(ctx: Context) -> int:
    """Layers of the model; without one, all layers that the spec names and some more, which stand for the rest."""
    if ctx.model is not None and "n_layers" in ctx.model:
        return min(int(ctx.model["n_layers"]), _MOST)
    method = ctx.method
    guards = [guard for hook in method.of(t.Hook) for guard in conditions_of(hook)]
    sets = [param for param in method.of(t.Param) if param.unit.text in ("layer_set", "int")]
    named = (node for root in (*guards, *sets, *method.of(t.Layers)) for node in t.walk(root))
    largest = max((node.value for node in named if isinstance(node, t.Int)), default=0)
    return min(largest + _UNKNOWN_MODEL, _MOST)
