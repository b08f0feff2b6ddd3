"""Bytes of what a method stores: per row of a zone, per page of a summary, per row of a token state.

Averages over whole blocks; rounding up to pages is the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsec.dsl import tree as t
from sparsec.dsl.params import Value
from sparsec.graph.host import HELPERS, Python, compiled
from sparsec.graph.program import Program
from sparsec.model_facts import ModelFacts

_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i32": 32, "i64": 64, "bool": 8, "set": 8, "bit": 1, "fp8": 8, "code": 8, "index": 32}


class Payload:
    """Sizes for one method, one choice of params and one model."""

    def __init__(self, program: Program, params: Mapping[str, Value], model: ModelFacts) -> None:
        self.program, self.model = program, model
        self._scope = {**HELPERS, "params": params, "model": model.names()}
        self._sizes = {"h": model.kv_heads, "g": model.group, "c": model.head_dim, "d": model.head_dim, "l": model.layers}
        self._sizes |= {"x": model.kv_width, "y": model.hidden}
        for domain in program.method.of(t.Domain):
            self._sizes[domain.letter.text] = int(self._value(domain.upto))

    def row_bytes(self, zone: str, part: str) -> float:
        """One row of all KV heads of one layer: its K or its V, with its share of scales and minima."""
        item = next(item for item in self.program.zones if item.name.text == zone)
        stores = [store for store in item.stores if self._part(item, store) == part]
        if not stores:
            shared = any(self._decoded_from(item, store, part) for store in item.stores)
            return 0.0 if shared else self.model.kv_heads * self.model.head_dim * self.model.dtype_bytes
        return sum(self._store_bytes(store) for store in stores)

    def _part(self, zone: t.Zone, store: t.Store) -> str:
        """The part that a store is charged to: the first that decodes from it."""
        return next((part for part in ("K", "V") if self._decoded_from(zone, store, part)), "K")

    def _decoded_from(self, zone: t.Zone, store: t.Store, part: str) -> bool:
        names = self.program.reads
        return any(d.target.name.text == part and store.target.name.text in names(d.value, None) for d in zone.decodes)

    def _store_bytes(self, store: t.Store) -> float:
        values = self._values(store.target)
        keywords = {keyword.name.text: keyword.value for keyword in store.dtype.keywords}
        size = values * self._bits(store.dtype) / 8
        if "block" in keywords:
            zero = "zero" in keywords and self._value(keywords["zero"])
            size += values / self._value(keywords["block"]) * (2 if zero else 1) * self.model.dtype_bytes
        return size

    def summary_bytes(self, name: str) -> float:
        """One page of a summary, all KV heads of one layer."""
        item = self.program.summaries[name]
        return self._values(item.target) * self._bits(item.dtype) / 8

    def state_bytes(self, name: str) -> float:
        """One value of a state per layer (a token state: per row), all KV heads."""
        state = self.program.states[name]
        return self._values(state.target) * self._bits(state.dtype) / 8

    def _values(self, target: t.Ref) -> int:
        count = 1
        for index in target.indices:
            count *= self._sizes.get(index.name.text, 1) if isinstance(index, t.Ref) else 1
        return count

    def _bits(self, dtype: t.Dtype) -> float:
        if dtype.name.text in ("model", "pruned", "module"):
            return 8 * self.model.dtype_bytes
        if dtype.name.text == "int":
            return self._value(dtype.args[0])
        return _BITS[dtype.name.text]

    def _value(self, expr: t.Expr) -> float:
        return eval(compiled(Python(self.program)(expr)), dict(self._scope))
