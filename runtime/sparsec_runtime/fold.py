"""Layers as rows: hooks after sampling run once for many layers, as they run once for many requests.

A folded step is a step of one layer whose rows are (layer, request), layer by layer; a folded storage is a pool of one layer that holds the pages of
all. Residents, views and settle.py read them like any other. The host launches as much for one layer as for 32, and a prompt's end is launches above all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .layout import Part
from .resident import Resident
from .step import Step
from .storage import Storage
from .zones import Addresses

ON_CPU = 1 << 26  # bytes; a CPU is slower over larger tensors


def bytes_together(device: torch.device) -> int:
    """What hooks of layers that run together may fill with K and scores: of a GPU 1/128, about what a chunk of a prompt needs there for itself."""
    return torch.cuda.get_device_properties(device).total_memory // 128 if device.type == "cuda" else ON_CPU


def folded(residents: Sequence[Resident], storage: Storage, alike: Sequence[Hashable], bound: int) -> list[Resident]:
    """Residents [layer] of a step as few of many rows each, over consecutive layers that are alike and read no more than the bound, or one layer each.

    storage: folded (Storage.with_layers_as_rows). Nothing that hooks decided may wait to be carried out.
    """
    return [_joined(group, storage) for group in _groups(residents, alike, bound)]


def _groups(residents: Sequence[Resident], alike: Sequence[Hashable], bound: int) -> Iterator[list[Resident]]:
    group: list[Resident] = []
    read = 0
    for resident in residents:
        more = _bytes_read(resident)
        if group and (alike[resident.layer] != alike[group[0].layer] or read + more > bound):
            yield group
            group, read = [], 0
        group.append(resident)
        read += more
    yield group


def _bytes_read(resident: Resident) -> int:
    """K of a layer, as it lies and in fp32, and its scores of all queries that the requests keep."""
    storage = resident.storage
    k = storage.heads * storage.head_dim * (storage.dtype.itemsize + 4)
    scores = sum(sequence.ring[0, :, :, 0].numel() * 4 for sequence in resident.step.sequences if sequence.ring is not None)
    return resident.width * (k * len(resident.step.sequences) + scores)


def _joined(residents: list[Resident], storage: Storage) -> Resident:
    layers = range(residents[0].layer, residents[-1].layer + 1)
    joined = Resident(storage, FoldedStep(residents[0].step, layers, storage), 0)
    joined.take_over(residents)
    return joined


class FoldedStep(Step):
    """Consecutive layers of a step as the rows of one."""

    def __init__(self, whole: Step, layers: range, storage: Storage) -> None:
        sequences = [sequence for _ in layers for sequence in whole.sequences]
        addresses: dict[str, Addresses] = {name: FoldedAddresses(at, layers) for name, at in whole.addresses.items()}
        super().__init__(whole.batch, sequences, addresses, whole.device, storage.layout)
        self._whole, self._layers = whole, layers
        self.before, self.rows, self.prompt_rows = (self._as_rows(counts) for counts in (whole.before, whole.rows, whole.prompt_rows))
        self.steps = np.tile(whole.steps, len(layers))

    def _as_rows(self, counts: np.ndarray) -> np.ndarray:
        """Counts [row, layer, kv_head] as [layer * row, 1, kv_head]."""
        here = counts[:, self._layers.start : self._layers.stop]
        return here.swapaxes(0, 1).reshape(-1, 1, counts.shape[2])

    def zone_rows(self, zone: str, part: Part, layer: int) -> np.ndarray:
        return np.concatenate([self._whole.zone_rows(zone, part, each) for each in self._layers])

    def layer_of_rows(self, layer: int) -> np.ndarray:
        return np.repeat(np.array(self._layers), len(self._whole.sequences))

    def newest_queries(self, layer: int, positions: Tensor) -> Tensor:
        layers = slice(self._layers.start, self._layers.stop)
        rings = [sequence.ring_at(layers, row) for sequence, row in zip(self._whole.sequences, positions)]  # the positions of a request are those of all its layers
        return torch.stack(rings, dim=1).flatten(0, 1)

    def plain_state(self, name: str, layer: int) -> Tensor:
        return torch.cat([self._whole.plain_state(name, each) for each in self._layers])

    def set_plain_state(self, name: str, layer: int, value: Tensor) -> None:
        for each, own in zip(self._layers, value.split(len(self._whole.sequences))):
            self._whole.set_plain_state(name, each, own)


class FoldedAddresses(Addresses):
    """Tables of consecutive layers: unit numbers count through the pools of all layers."""

    def __init__(self, whole: Addresses, layers: range) -> None:
        super().__init__(whole.stream, whole.table)
        self._layers = slice(layers.start, layers.stop)

    def _of_layer(self, layer: int) -> Tensor:
        geometry, heads = self._geometry, torch.arange(self._geometry.heads, device=self.table.device)[:, None]
        if geometry.scope == "head":
            units = self.table.unflatten(1, (-1, geometry.heads))[:, self._layers]
        elif geometry.scope == "layer":
            units = self.table[:, self._layers, None] * geometry.heads + heads
        else:
            first = torch.arange(self._layers.start, self._layers.stop, device=self.table.device) * geometry.units_per_layer
            units = self.table[:, :, None] * geometry.heads + heads + first[:, None, None]
        return units.transpose(0, 1).flatten(0, 1)
