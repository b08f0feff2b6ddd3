"""What a method should cost on a model: KV bytes held at given lengths, bytes read per decode step, and the best possible gain.

An estimate of traffic, not of time: weights and rows are read once, everything else is free. So the gain is a ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.params import Value
from sparsec.dsl.phases import DECODE, can_fire
from sparsec.graph.capacity import Rows, Simulation
from sparsec.graph.counts import CountRule, read_rules
from sparsec.graph.facts import scheduled_page_size
from sparsec.graph.host import HELPERS, Python, compiled
from sparsec.graph.payload import Payload
from sparsec.graph.program import Program
from sparsec.model_facts import ModelFacts

WORTH_IT = 1.1  # a smaller ideal gain is reported as "weights dominate"
DEFAULT_PAGE = 16


@dataclass(frozen=True, slots=True)
class Held:
    """KV bytes of one request with a prompt of `tokens`: peak (prompt included), held after it, and dense for comparison."""

    tokens: int
    peak: int
    after_prompt: int
    dense: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one decode step of the whole batch reads at `context` tokens a request."""

    context: int
    batch: int
    weights: int
    rows: int
    summaries: int
    states: int
    dense_rows: int

    @property
    def total(self) -> int:
        return self.weights + self.rows + self.summaries + self.states

    @property
    def gain(self) -> float:
        """Dense bytes over the method's: the most that decoding can be faster."""
        return (self.weights + self.dense_rows) / self.total


@dataclass(frozen=True, slots=True)
class Estimate:
    model: str
    dtype: str
    bytes_per_token: int  # dense, all layers
    held: tuple[Held, ...]
    traffic: Traffic
    exact: bool
    warnings: tuple[str, ...]


class Estimator:
    """`params` holds every param of the method; `special` is specialised with the static ones among them."""

    def __init__(self, special: Checked, params: Mapping[str, Value], model: ModelFacts) -> None:
        self.special, self.params, self.model = special, params, model
        self.program = Program(special)
        self.payload = Payload(self.program, params, model)
        self.page = int(params.get("page_size") or scheduled_page_size(special.method) or DEFAULT_PAGE)
        self.simulation = Simulation(special, params, model.names(), self.page)

    def estimate(self, context: int, batch: int, lengths: tuple[int, ...], chunk: int | None) -> Estimate:
        held = tuple(self.held(length, chunk) for length in lengths)
        traffic = self.traffic(context, batch, chunk)
        exact = self.simulation.run(1).exact
        return Estimate(
            self.model.name, self.model.dtype, self.model.kv_bytes_per_token, held, traffic, exact, self._warnings(traffic)
        )

    def held(self, tokens: int, chunk: int | None) -> Held:
        counts = self.simulation.run(tokens, 0, chunk)
        dense = tokens * self.model.kv_bytes_per_token
        return Held(tokens, self._bytes(counts.peak), self._bytes(counts.after_prompt), dense)

    def traffic(self, context: int, batch: int, chunk: int | None) -> Traffic:
        """Of the first decode step after a prompt of `context` tokens."""
        counts = self.simulation.run(context, 1, chunk)
        rows = summaries = 0.0
        for layer in range(self.model.layers):
            held = sum(counts.decode_peak[zone, "K", layer] for zone in self.simulation.zones)
            share, selecting = self._share(held, layer)
            rows += share * self._bytes({place: n for place, n in counts.decode_peak.items() if place[2] == layer})
            if selecting:
                pages = -(-held // self.page)
                summaries += pages * sum(self.payload.summary_bytes(name) for name in self._read_summaries())
        states = self._states(counts.decode_peak)
        dense = (context + 1) * self.model.kv_bytes_per_token
        return Traffic(
            context, batch, self.model.read_bytes, *(round(batch * size) for size in (rows, summaries, states, dense))
        )

    def _bytes(self, rows: Rows) -> int:
        return round(sum(count * self.payload.row_bytes(zone, part) for (zone, part, _), count in rows.items()))

    def _share(self, held: float, layer: int) -> tuple[float, bool]:
        """The share of the held rows that attention reads in a layer, and whether the layer selects."""
        for rule in read_rules(self.special):
            rows = self._selected(rule, held, layer) if can_fire(rule.hooks, rule.when, DECODE) else None
            if rows is not None:
                return min(1.0, rows * self._choosers(rule) / held), True
        return 1.0, False

    def _choosers(self, rule: CountRule) -> int:
        """Query heads that share a KV head may choose different rows, each of which must be read."""
        effect = self.program.rules[rule.rule].effects
        stmt = next(entry.stmt for entry in effect if entry.line == rule.line)
        return self.model.group if "g" in self.program.free(stmt, self.program.rules[rule.rule]) else 1

    def _selected(self, rule: CountRule, held: float, layer: int) -> float | None:
        python = Python(self.program)
        scope: dict[str, object] = {**HELPERS, "params": self.params, "model": self.model.names(), "layer": layer}
        scope |= {"length": held, "steps": 1, "prompt_rows": held, "page_size": self.page, "rows": {}}
        scope |= {"prefilling": False, "decoding": True, "prompt_done": True}
        for item in self.program.method.of(t.Layers):
            scope[item.name.text] = eval(compiled(python(item.value)), scope)
        for name, value in map(python.let, rule.lets):
            scope[name] = eval(compiled(value), scope)
        guards = [guard for guard in (rule.layers, rule.when) if guard is not None]
        if not all(eval(compiled(python(guard)), scope) for guard in guards):
            return None
        rows = eval(compiled(python(rule.rows)), scope)
        return rows / {"head": 1, "layer": self.model.kv_heads, "model": self.model.kv_heads * self.model.layers}[rule.per]

    def _read_summaries(self) -> list[str]:
        rules = [rule for rule in self.program.rules if can_fire(rule.names, rule.hook.when, DECODE)]
        read = frozenset().union(*(self.program.reads(effect.stmt, rule) for rule in rules for effect in rule.effects))
        return sorted(read & set(self.program.summaries))

    def _states(self, rows: Rows) -> float:
        """Token states that decode hooks update: read and written once."""
        touched = {
            effect.stmt.target.name.text
            for rule, effect in self.program.effects(t.Assign)
            if can_fire(rule.names, effect.when, DECODE)
        }
        first = {layer: 0.0 for layer in range(self.model.layers)}
        for (_, part, layer), count in rows.items():
            first[layer] += count if part == "K" else 0
        per_row = sum(self.payload.state_bytes(name) for name in touched if self._per_token(name))
        return 2 * per_row * sum(first.values())

    def _per_token(self, name: str) -> bool:
        state = self.program.states[name]
        return not state.shared and any(isinstance(i, t.Ref) and i.name.text == "t" for i in state.target.indices)

    def _warnings(self, traffic: Traffic) -> tuple[str, ...]:
        found = []
        if traffic.context > self.model.context:
            found.append(f"context {traffic.context} is beyond the model's {self.model.context} positions")
        if traffic.gain < WORTH_IT and (self.program.rules or self.special.method.of(t.Zone)):
            share = traffic.weights / (traffic.weights + traffic.dense_rows)
            found.append(
                f"weights dominate: they are {share:.0%} of what dense decoding reads at batch {traffic.batch} and context "
                f"{traffic.context}, so no more than {traffic.gain:.2f}x can be gained; a larger batch or context shows more"
            )
        return tuple(found)
