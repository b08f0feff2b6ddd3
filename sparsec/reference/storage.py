"""What one sequence holds: its inputs, the rows of every layer, encoded payload, states. Implements the `Storage` that moments read."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference import tensors
from sparsec.reference.encoded import DTYPES, Encoded, coded, padded, write
from sparsec.reference.evaluate import evaluate
from sparsec.reference.moment import Moment, QueryBlock
from sparsec.reference.program import Program, Unsupported
from sparsec.reference.rows import Rows
from sparsec.reference.values import Scalar, Term, Value, elementwise, ordered
from sparsec_runtime.rope import Rope


class MissingInput(Exception):
    """The method needs something that the inputs lack; the text says what and where it is needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """q [layer, token from q_start, q_head, channel]; k, v [layer, token, kv_head, channel], in the payload's dtype.

    `rotated`: q and k are after RoPE. Otherwise `rope` rotates them at their logical positions, or at their rank where a method says so.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_start: int = 0
    rotated: bool = True
    rope: Rope | None = None

    @property
    def math(self) -> torch.dtype:
        """The dtype of scores and attention: float32, or float64 for a float64 payload."""
        return torch.float64 if self.k.dtype == torch.float64 else torch.float32


@dataclass(eq=False)
class SequenceStorage:
    """The mutable part of a run. `reads` caches decoded K and V until a layer's rows change."""

    program: Program
    inputs: Inputs
    tokens: int = 0
    rows: list[Rows] = field(default_factory=list)
    states: dict[tuple[str, int], Value] = field(default_factory=dict)
    shared: dict[str, Term] = field(default_factory=dict)
    encoded: dict[tuple[str, int], Encoded] = field(default_factory=dict)
    reads: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layers, _, heads, _ = self.inputs.k.shape
        self.rows = [Rows.empty(heads) for _ in range(layers)]

    # ---- rows ------------------------------------------------------------------------------

    def append(self, count: int) -> None:
        self.tokens += count
        self.rows = [rows.appended(count) for rows in self.rows]
        self.reads.clear()

    def set_rows(self, layer: int, rows: Rows) -> None:
        self.rows[layer] = rows
        for part in ("K", "V"):
            self.reads.pop((part, layer), None)

    # ---- payload ---------------------------------------------------------------------------

    def read(self, part: str, layer: int) -> Tensor:
        """[token, kv_head, channel] of K or V as attention sees it; "raw K" is K at its logical position, never encoded."""
        if (part, layer) not in self.reads:
            self.reads[part, layer] = self._written(part, layer) if part == "raw K" else self._decoded(part, layer)
        return self.reads[part, layer]

    def _written(self, part: str, layer: int) -> Tensor:
        source = self.inputs.v if part == "V" else self.inputs.k
        x = source[layer, : self.tokens]
        if part != "V" and not self.inputs.rotated:
            x = self._rotated(x, torch.arange(self.tokens)[:, None])
        return x.to(self.inputs.math)

    def _decoded(self, part: str, layer: int) -> Tensor:
        rows = self.rows[layer]
        at = self.moment(layer, f"decode {part}")
        x = self._written(part, layer)
        codes = rows.zone_k if part == "K" else rows.zone_v
        for index, zone in enumerate(self.program.zones):
            decode = next((entry for entry in zone.decodes if entry.target.name.text == part), None)
            if decode is None or not bool((codes == index).any()):
                continue
            value = evaluate(decode.value, at)
            shown = tensors.laid_out(value, ("t", "h", "c"), at, evaluate).over(("t", "h", "c")).to(x.dtype)
            x = torch.where((codes == index).T[:, :, None], shown, x)
        return x

    def keys_before_rope(self, layer: int, where: str) -> Tensor:
        if self.inputs.rotated:
            raise MissingInput(f"{where} reads K before RoPE, but k is given rotated; give q and k before RoPE with rotated=False and rope=...")
        return self.inputs.k[layer, : self.tokens].to(self.inputs.math)

    def rotate(self, x: Value, positions: Value, where: str) -> Value:
        letters = ordered({*x.letters, *positions.letters})
        turns = positions.over(tuple(letter for letter in letters if letter != "c"))
        return Value(self._rotated(x.over(letters), turns), letters)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [..., channel] turned to integer positions that broadcast over [...]."""
        assert self.inputs.rope is not None, "unrotated inputs come with a rope"
        cos, sin = self.inputs.rope.cos_sin(positions)
        return self.inputs.rope.rotate(x, cos, sin)

    def queries(self, layer: int, positions: Tensor, where: str) -> Tensor:
        """[query, kv_head, group, channel], rotated as the method's position rule says."""
        if positions.numel() and int(positions.min()) < self.inputs.q_start:
            raise MissingInput(f"{where} observes the query at {int(positions.min())}, but q starts at {self.inputs.q_start}")
        heads = self.inputs.k.shape[2]
        q = self.inputs.q[layer, positions - self.inputs.q_start].unflatten(1, (heads, -1))
        if not self.inputs.rotated:
            place = positions[:, None, None]
            if self.rank_rule():
                place = self.rows[layer].rank()[:, positions].T[:, :, None]
            q = self._rotated(q, place)
        return q.to(self.inputs.math)

    def rank_rule(self) -> bool:
        """Whether K is read at the row's rank, so that queries stand at theirs."""
        at = self.moment(0, "position rule")
        calls = (
            node
            for zone in self.program.zones
            for entry in zone.decodes
            for node in t.walk(entry.value)
            if isinstance(node, t.Call) and node.name.text == "rope"
        )
        return any(not tensors.counts_logically(node, at, evaluate) for node in calls)

    def window(self, count: int) -> QueryBlock:
        return QueryBlock(torch.arange(max(0, self.tokens - count), self.tokens))

    # ---- encoded payload -------------------------------------------------------------------

    def encode(self, layer: int, rows: Tensor, part: str | None, zone: t.Zone) -> None:
        """Run the zone's stores for rows [kv_head, token] that enter it."""
        at = self.moment(layer, f"zone {zone.name.text}")
        for store in zone.stores:
            if part in (None, self.program.part_of(store.target.name.text)):
                self._encode_store(store, rows, at)

    def _encode_store(self, store: t.Store, rows: Tensor, at: Moment) -> None:
        name = store.target.name.text
        letters = ordered({index.name.text for index in store.target.indices})
        if "t" not in letters:
            raise Unsupported("a store without a token index", store)
        x = tensors.laid_out(evaluate(store.value, at), letters, at, evaluate).data.to(self.inputs.k.dtype)
        kept = self.encoded.setdefault((name, at.layer), Encoded(letters))
        for head in range(rows.shape[0]) if "h" in letters else (0,):
            where = [slice(None)] * x.ndim
            if "h" in letters:
                where[letters.index("h")] = head
            where[letters.index("t")] = rows[head].nonzero().squeeze(-1)
            if where[letters.index("t")].numel():
                left = tuple(letter for letter in letters if letter != "h")
                write(kept, tuple(where), coded(store, x[tuple(where)], left, at), x)

    def stored(self, name: str, layer: int) -> Value:
        """The decoded values of a store; rows that were never encoded are 0."""
        kept = self.encoded.get((name, layer))
        assert kept is not None and kept.values is not None, f"{name} is read before any row was encoded"
        axis = kept.letters.index("t")
        missing = self.tokens - kept.values.shape[axis]
        return Value(padded(kept.values, axis, missing).to(self.inputs.math), kept.letters)

    # ---- states ----------------------------------------------------------------------------

    def state(self, name: str, at: Moment) -> Term:
        item = self.program.states[name]
        if item.shared:
            return self.shared[name] if name in self.shared else self._initial(item, at)
        key = (name, 0 if "l" in self._state_letters(item) else at.layer)
        if key not in self.states:
            self.states[key] = self._initial(item, at)
        value = self.states[key]
        if isinstance(value, Value) and "t" in value.letters and value.size("t") < self.tokens:
            value = self._grown(item, value, at)
            self.states[key] = value
        return value

    def assign(self, statement: t.Assign, term: Term, guard: bool | Value, at: Moment) -> None:
        name = statement.target.name.text
        item, old = self.program.states[name], self.state(name, at)
        if item.dtype.name.text == "set":
            self.shared[name] = term
            if not item.shared:
                raise Unsupported("a set state that is not shared", item)
            return
        new = elementwise(torch.add, old, term) if statement.op == "+=" else term
        if isinstance(guard, Value):
            new = elementwise(torch.where, guard, new, old)
        letters = self._state_letters(item)
        laid = tensors.laid_out(new, letters, at, evaluate) if letters else new
        if isinstance(laid, Value):
            laid = Value(laid.data.to(self._state_dtype(item)), laid.letters)
        if item.shared:
            self.shared[name] = laid
        else:
            self.states[name, 0 if "l" in letters else at.layer] = laid

    def _initial(self, item: t.State, at: Moment) -> Term:
        if item.dtype.name.text == "set":
            assert item.dtype.letter is not None, "a set state names its letter"
            return evaluate(item.initial, at.counting(item.dtype.letter.text))
        value, letters = evaluate(item.initial, at), self._state_letters(item)
        if not letters:
            return value
        laid = tensors.laid_out(value, letters, at, evaluate)
        return Value(laid.data.to(self._state_dtype(item)), laid.letters)

    def _grown(self, item: t.State, value: Value, at: Moment) -> Value:
        """New rows hold the initial value."""
        fresh = self._initial(item, at)
        assert isinstance(fresh, Value), "a state with letters is laid out"
        axis = value.letters.index("t")
        new = fresh.data.narrow(axis, value.size("t"), self.tokens - value.size("t"))
        return Value(torch.cat((value.data, new), axis), value.letters)

    def _state_letters(self, item: t.State) -> tuple[str, ...]:
        letters = ordered({index.name.text for index in item.target.indices})
        if "p" in letters or "i" in letters:
            raise Unsupported("a state over pages or queries", item)
        return letters

    def _state_dtype(self, item: t.State) -> torch.dtype:
        name = item.dtype.name.text
        if name == "model":
            return self.inputs.k.dtype
        if name == "bool":
            return torch.bool
        if name not in DTYPES:
            raise Unsupported(f"a state of dtype {name}", item.dtype)
        return self.inputs.math if name == "f32" else DTYPES[name]

    # ---- moments ---------------------------------------------------------------------------

    def moment(self, layer: int, hook: str, facts: dict[str, Scalar] | None = None) -> Moment:
        """A moment of a layer with no queries and no lets."""
        rows = self.rows[layer]
        return Moment(self.program, self, layer, rows, rows, hook, {**self.program.facts, **(facts or {}), "layer": layer})
