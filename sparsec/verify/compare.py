"""The first place where two runs of one sequence differ: rows kept, rows read, zones, states, outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsec.reference.values import Value
from sparsec.verify.oracle import Step


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs, in words that end a sentence about two runs; `choice`: rows were chosen otherwise, so that rounding may excuse it."""

    what: str
    step: int
    layer: int
    head: int | None
    choice: bool


def first_difference(one: Sequence[Step], other: Sequence[Step], tolerance: float) -> Difference | None:
    """Compares step by step; values within `tolerance` (relative to the largest, and absolute), 0: bit by bit."""
    assert len(one) == len(other), f"{len(one)} and {len(other)} steps"
    for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        for layer in range(len(mine.kept)):
            found = next(_in_layer(mine, theirs, number, layer, tolerance), None)
            if found is not None:
                return found
    return None


def _in_layer(mine: Step, theirs: Step, step: int, layer: int, tolerance: float) -> Iterator[Difference]:
    attended = _last(mine.attended[layer]) != _last(theirs.attended[layer])
    if bool(attended.any()):
        head = int(attended.any(1).nonzero()[0])
        yield Difference(f"query head {head} reads other rows: {_positions(attended[head])}", step, layer, head, True)
    mine_out, theirs_out = _last(mine.out[layer]), _last(theirs.out[layer])
    error = _error(mine_out, theirs_out, tolerance)
    if error is not None:
        yield Difference(f"the outputs differ by {error:.2g}", step, layer, int((mine_out - theirs_out).abs().amax(1).argmax()), False)
    kept = mine.kept[layer] != theirs.kept[layer]
    if bool(kept.any()):
        head = int(kept.any(1).nonzero()[0])
        yield Difference(f"other rows are kept: {_positions(kept[head])}", step, layer, head, True)
    zones = (mine.zones[layer] != theirs.zones[layer]) & mine.kept[layer]
    if bool(zones.any()):
        part, head, row = zones.nonzero()[0].tolist()
        yield Difference(f"the {'KV'[part]} of the row at position {row} lies in another zone", step, layer, head, True)
    for name in sorted(mine.states[layer].keys() & theirs.states[layer].keys()):
        error = _state_error(mine.states[layer][name], theirs.states[layer][name], mine.kept[layer], tolerance)
        if error is not None:
            yield Difference(f"the state {name} differs by {error:.2g}", step, layer, None, False)


def _last(of_queries: Tensor) -> Tensor:
    """Of the step's last query: chunks of other sizes leave other numbers of queries."""
    return of_queries[-1]


def _error(one: Tensor, other: Tensor, tolerance: float) -> float | None:
    if torch.equal(one, other):
        return None
    error = float((one.float() - other.float()).abs().max())
    return None if error <= tolerance * max(1.0, float(one.float().abs().max())) else error


def _state_error(one: Value, other: Value, kept: Tensor, tolerance: float) -> float | None:
    """Of the rows that are kept; a state without rows is compared whole."""
    letters = one.letters
    mine, theirs = one.over(letters), other.over(letters)
    if "t" in letters:
        rows = kept if "h" in letters else kept.any(0)
        place = Value(rows, ("h", "t") if "h" in letters else ("t",)).over(letters)
        mine, theirs = torch.where(place, mine, 0), torch.where(place, theirs, 0)
    return _error(mine, theirs.expand(mine.shape), tolerance)


def _positions(rows: Tensor) -> str:
    found = rows.nonzero().flatten().tolist()
    return "position" + ("s " if len(found) > 1 else " ") + ", ".join(map(str, found[:6])) + (", ..." if len(found) > 6 else "")
