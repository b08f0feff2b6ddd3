"""Rows held by one request, counted as the host counts them: prompt chunks, then decode steps, hook by hook.

Exact where every count rule is; an upper bound where heads are ragged or a guard depends on tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.params import Value
from sparsec.graph.counts import PARTS, CountRule, count_rules
from sparsec.graph.host import HELPERS, Python, compiled
from sparsec.graph.program import Program

Place = tuple[str, str, int]  # zone, part, layer
Rows = dict[Place, float]  # rows of one KV head; the average where heads are ragged


@dataclass(frozen=True, slots=True)
class Capacity:
    """Rows by (zone, part, layer): the most that slots are needed for at any moment, in a decode step, and what is held
    right after the prompt and at the end."""

    peak: Rows
    decode_peak: Rows
    after_prompt: Rows
    final: Rows
    exact: bool


@dataclass(frozen=True, slots=True)
class _Compiled:
    rule: CountRule
    lets: tuple[tuple[str, CodeType], ...]
    layers: CodeType | None
    when: CodeType | None
    rows: CodeType


class Simulation:
    """Counts of one method for one choice of params and model. `params` holds every param, static ones included."""

    def __init__(self, special: Checked, params: Mapping[str, Value], model: Mapping[str, int | float], page_size: int = 16) -> None:
        program = Program(special)
        self.rules = tuple(_compile(rule, Python(program)) for rule in count_rules(special))
        self.zones = tuple(zone.name.text for zone in program.zones)
        self.model = model
        self.scope = {**HELPERS, **_layer_sets(program, params, model), "params": params, "model": model}
        self.scope["page_size"] = params.get("page_size", page_size)
        self.by_layer = any(_reads_layer(program, entry.rule) for entry in self.rules)

    def run(self, prompt: int, new: int = 0, chunk: int | None = None) -> Capacity:
        """The counts of a request with `prompt` tokens, prefilled by `chunk` (None: at once), and `new` decode steps."""
        layers = range(int(self.model["n_layers"]))
        different = layers if self.by_layer else layers[:1]
        results = [self._layer(layer, prompt, new, chunk or max(1, prompt)) for layer in different]
        found: list[Rows] = [{}, {}, {}, {}]
        for layer in layers:
            for rows, counts in zip(found, results[layer if self.by_layer else 0], strict=True):
                rows.update({(zone, part, layer): count for (zone, part), count in counts.items()})
        return Capacity(*found, exact=all(entry.rule.exact for entry in self.rules))

    def _layer(self, layer: int, prompt: int, new: int, chunk: int) -> tuple[dict, dict, dict, dict]:
        rows = {(zone, part): 0 for zone in self.zones for part in PARTS}
        peak, decode_peak = dict(rows), dict(rows)
        state = {"layer": layer, "steps": 0, "prompt_rows": 0}
        for start in range(0, prompt, chunk):
            size = min(chunk, prompt - start)
            self._step(rows, peak, size, state | _flags(True, start + size == prompt))
        after_prompt = dict(rows)
        state["prompt_rows"] = sum(count for (_, part), count in rows.items() if part == "K")
        for step in range(new):
            self._step(rows, decode_peak, 1, state | _flags(False, True) | {"steps": step + 1})
        return {place: max(peak[place], decode_peak[place]) for place in rows}, decode_peak, after_prompt, rows

    def _step(self, rows: dict, peak: dict, size: int, state: dict[str, object]) -> None:
        for part in PARTS:
            rows[self.zones[0], part] += size
        hooks = ("build_prefill_selection",) if state["prefilling"] else ("build_decode_selection",)
        self._fire(hooks, rows, peak, state)
        _raise(peak, rows)
        if state["prefilling"] and state["prompt_done"]:
            self._fire(("end_of_prompt",), rows, peak, state)
            self._fire(("finish_step",), rows, peak, state, without="end_of_prompt")
        else:
            self._fire(("finish_step",), rows, peak, state)

    def _fire(self, hooks: tuple[str, ...], rows: dict, peak: dict, state: dict[str, object], without: str = "") -> None:
        for entry in self.rules:
            if set(hooks) & set(entry.rule.hooks) and without not in entry.rule.hooks:
                self._apply(entry, rows, state)
                _raise(peak, rows, entry.rule.zone)

    def _apply(self, entry: _Compiled, rows: dict, state: dict[str, object]) -> None:
        rule = entry.rule
        length = sum(rows[zone, "K"] for zone in self.zones)
        scope = {**self.scope, **state, "length": length, "rows": rows}
        if entry.layers is not None and not eval(entry.layers, scope):
            return
        if not entry.lets and entry.when is not None and not eval(entry.when, scope):
            return
        for name, code in entry.lets:
            scope[name] = eval(code, scope)
        if entry.when is not None and not eval(entry.when, scope):
            return
        count = eval(entry.rows, scope) / self._sharers(rule)
        self._evict(rows, count, rule) if rule.action == "evict" else self._move(rows, count, rule)

    def _sharers(self, rule: CountRule) -> int:
        """KV heads over which the rule counts; 1 keeps whole numbers whole."""
        heads = int(self.model["kv_heads"])
        return {"head": 1, "layer": heads, "model": heads * int(self.model["n_layers"])}[rule.per]

    def _evict(self, rows: dict, count: float, rule: CountRule) -> None:
        if rule.certain:
            for place in rows:
                rows[place] = min(rows[place], _whole(count))

    def _move(self, rows: dict, count: float, rule: CountRule) -> None:
        for part in rule.parts:
            sources = [rule.source] if rule.source is not None else [zone for zone in self.zones if zone != rule.zone]
            moved = min(_whole(count), sum(rows[zone, part] for zone in sources))
            rows[rule.zone, part] += moved
            if rule.exact and rule.source is not None:
                rows[rule.source, part] -= moved


def _compile(rule: CountRule, python: Python) -> _Compiled:
    lets = tuple((name, compiled(value)) for name, value in map(python.let, rule.lets))
    layers, when = (compiled(python(guard)) if guard is not None else None for guard in (rule.layers, rule.when))
    return _Compiled(rule, lets, layers, when, compiled(python(rule.rows)))


def _layer_sets(program: Program, params: Mapping[str, Value], model: Mapping[str, int | float]) -> dict[str, object]:
    """Named layer sets, evaluated in order."""
    python, scope = Python(program), {**HELPERS, "params": params, "model": model}
    for item in program.method.of(t.Layers):
        scope[item.name.text] = eval(compiled(python(item.value)), scope)
    return {item.name.text: scope[item.name.text] for item in program.method.of(t.Layers)}


def _reads_layer(program: Program, rule: CountRule) -> bool:
    scope = program.rules[rule.rule]
    exprs = [expr for expr in (rule.layers, rule.when, rule.rows) if expr is not None]
    return any("layer" in program.reads(expr, scope) for expr in exprs)


def _flags(prefilling: bool, prompt_done: bool) -> dict[str, object]:
    return {"prefilling": prefilling, "decoding": not prefilling, "prompt_done": prompt_done}


def _raise(peak: dict, rows: dict, zone: str | None = None) -> None:
    for place, count in rows.items():
        if zone is None or place[0] == zone:
            peak[place] = max(peak[place], count)


def _whole(count: float) -> float:
    return int(count) if count == int(count) else count
