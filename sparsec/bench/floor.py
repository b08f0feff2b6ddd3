"""The memory floor of a decode step: weights read once and what attention must read once, at the bandwidth of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from sparsec_runtime.cache import CacheManager
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.sequence import Sequence

H200_BYTES_PER_SECOND = 4.3e12


@dataclass(frozen=True, slots=True)
class Floor:
    """Bytes of one step."""

    weights: int
    rows: int
    bounds: int

    @property
    def milliseconds(self) -> float:
        return (self.weights + self.rows + self.bounds) / H200_BYTES_PER_SECOND * 1e3


def floor_of(model: LoadedModel, manager: CacheManager, sequences: list[Sequence]) -> Floor:
    """Of a step over raw rows; the embedding of untied models is not read whole."""
    shape, size = model.shape, model.dtype.itemsize
    weights = sum(weight.numel() for weight in model.module.parameters()) * size
    weights -= 0 if shape.tied else shape.vocab * shape.hidden * size
    row = 2 * shape.head_dim * size
    read = bounds = 0
    for sequence in sequences:
        for layer in range(shape.layers):
            held = int(sequence.rows[layer].sum())
            choice = manager.DECODE.pages
            if choice is not None and manager.fires("build_decode_selection", layer):
                page = manager.storage.page_size
                budget = max(int(sequence.params[choice.budget]), int(sequence.params[choice.least]) * page)
                if held > budget * shape.kv_heads:
                    bounds += held // page * row
                    held = budget * shape.kv_heads
            read += held * row
    return Floor(weights, read, bounds)
