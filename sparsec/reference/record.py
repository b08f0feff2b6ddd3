"""Turns values over all tokens into `Recorded`: the token axis becomes the rows that a layer holds, in position order per head."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference import tensors
from sparsec.reference.encoded import Encoded
from sparsec.reference.evaluate import evaluate, reference
from sparsec.reference.moment import Moment
from sparsec.reference.program import Program
from sparsec.reference.sequence import Sequence
from sparsec.reference.values import Term, Value
from sparsec.trace import Recorded


def recordable(program: Program) -> set[str]:
    """Every name that `record` may ask for."""
    stores = set(program.stores)
    lets = {node.target.name.text for hook in program.method.of(t.Hook) for node in t.walk(hook) if isinstance(node, t.Let)}
    zones = {f"{zone.name.text}.rows" for zone in program.zones}
    coded = {f"{name}.{part}" for name in stores for part in ("scale", "min")}
    return lets | set(program.states) | set(program.summaries) | stores | zones | coded


@dataclass(eq=False)
class Recorder:
    """Collects `names`: lets as hooks define them, everything else after each step."""

    program: Program
    names: tuple[str, ...]
    steps: dict[str, list[list[Recorded | None]]] = field(default_factory=dict)
    _lets: dict[tuple[str, int], Recorded] = field(default_factory=dict)

    def let(self, name: str, value: Term, letters: tuple[str, ...], at: Moment) -> None:
        if name in self.names:
            self._lets[name, at.layer] = over_rows(value, at.rows.resident)

    def after_step(self, sequence: Sequence) -> None:
        for name in self.names:
            values = [self._value(name, layer, sequence) for layer in range(sequence.layers)]
            self.steps.setdefault(name, []).append(values)
        self._lets.clear()

    def _value(self, name: str, layer: int, sequence: Sequence) -> Recorded | None:
        storage, at = sequence.storage, sequence.storage.moment(layer, "after the step")
        base, _, part = name.partition(".")
        zone = self.program.zone_index(base)
        if part == "rows" and zone is not None:
            counts = [at.rows.in_zone(zone, which).sum(1).amax() for which in ("K", "V")]
            return Recorded(torch.stack(counts), ("part",))
        if base in self.program.stores:
            return _stored(self.program, base, part, storage.encoded.get((base, layer)), at)
        if name in self.program.states:
            item = self.program.states[name]
            if item.shared and name not in storage.shared:
                return None
            return over_rows(storage.state(name, at), at.rows.resident)
        if name in self.program.summaries:
            value = reference(self.program.summaries[name].target, at)
            return over_rows(tensors.laid_out(value, value.letters, at, evaluate), at.rows.resident)
        return self._lets.get((name, layer))


def over_rows(value: Term, rows: Tensor) -> Recorded:
    """A value over all tokens as a value over `rows` [kv_head, token]."""
    if not isinstance(value, Value):
        return Recorded(torch.as_tensor(value), ())
    if "t" not in value.letters:
        return Recorded(value.data, value.letters)
    support = None
    if value.support is not None:
        letters = tuple(letter for letter in value.letters if letter in ("h", "t"))
        others = [axis for axis, letter in enumerate(value.letters) if letter not in letters]
        support = value.support.any(others) if others else value.support
        support = Value(support, letters).over(("h", "t")).expand(rows.shape)
    places = _places(rows)
    defined = (places >= 0) & (support.gather(1, places.clamp(min=0)) if support is not None else True)
    data = _gathered(value.data, value.letters, places.clamp(min=0))
    return Recorded(data, value.letters, torch.where(defined, places, -1))


def _places(rows: Tensor) -> Tensor:
    """[kv_head, n] positions of the true entries in order, -1 at the end of shorter heads."""
    count = rows.sum(1)
    width = int(count.max())
    order = rows.int().sort(dim=1, descending=True, stable=True).indices[:, :width]
    return torch.where(torch.arange(width) < count[:, None], order, -1)


def _gathered(data: Tensor, letters: tuple[str, ...], places: Tensor) -> Tensor:
    """Replace the token axis by `places`: per head where the value has heads, else those of head 0."""
    axis = letters.index("t")
    if "h" not in letters:
        return data.index_select(axis, places[0])
    head = letters.index("h")
    moved = data.movedim((head, axis), (0, 1))
    picked = torch.stack([moved[n, places[n]] for n in range(places.shape[0])])
    return picked.movedim((0, 1), (head, axis))


def _stored(program: Program, name: str, part: str, kept: Encoded | None, at: Moment) -> Recorded | None:
    """Codes of a store as integers (its decoded values where it has no codes), or its scale or minimum, one per group."""
    if kept is None:
        return None
    data = {"": kept.codes if kept.codes is not None else kept.values, "scale": kept.scale, "min": kept.minimum}[part]
    if data is None:
        return None
    zone = next(n for n, item in enumerate(program.zones) if name in {store.target.name.text for store in item.stores})
    places = _places(at.rows.in_zone(zone, program.part_of(name)))
    values = _gathered(data, kept.letters, places.clamp(min=0))
    if part:
        store = program.stores[name]
        options = {word.name.text: word.value for word in store.dtype.keywords}
        along, block = options["along"].name.text, int(evaluate(options["block"], at))
        values = values.index_select(kept.letters.index(along), torch.arange(0, values.shape[kept.letters.index(along)], block))
        places = places[:, ::block] if along == "t" else places
    return Recorded(values, kept.letters, places)
