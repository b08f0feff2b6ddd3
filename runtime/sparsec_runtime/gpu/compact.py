"""commit_step's moves on a CUDA device: what all layers evicted, in one launch per array. For methods with one raw zone (gpu/eligible.py)."""

from __future__ import annotations

import numpy as np
import torch

from ..layout import PARTS
from ..resident import Resident
from ..zones import PagedArray
from .kernels.compact import move_rows

TILE = 64


def compact_rows(residents: list[Resident]) -> None:
    """Moves K, V, positions and token states of every layer that evicted. States that a hook set are not expected here, nor moves between zones."""
    evicting = [resident for resident in residents if resident.source is not None]
    assert not any(resident.moved for resident in residents), "rows move between zones: settle.py does that"
    if not evicting:
        return
    storage = evicting[0].storage
    arrays = [storage.stores[storage.newest_zone, part].rows for part in PARTS]
    arrays += [] if storage.positions is None else [storage.positions]
    arrays += [array for _, array in storage.token_states.values()]
    shared = storage.layout.scope == "shared" and len(evicting) == len(residents)
    for group in [evicting] if shared else [[resident] for resident in evicting]:
        _move(arrays, group)


def _move(arrays: list[PagedArray], group: list[Resident]) -> None:
    """The layers of a group hold equal counts; several layers share one table."""
    first = group[0]
    source = torch.stack([resident.source for resident in group]).flatten(1, 2)
    kept = first.step.on_device(np.stack([resident.rows.astype(np.int32).ravel() for resident in group]))
    at = first.step.addresses[first.storage.row_stream.name]
    units = at.units(first.layer).flatten(0, 1).contiguous()
    for array in arrays:
        data = array.data if len(group) > 1 else array.of(first.layer)[None]
        width = data[0, 0, 0].numel()
        move_rows[(units.shape[0], len(group))](
            data, units, source, kept, data.stride(0), 0, units.stride(0), source.stride(0), source.stride(1), kept.stride(0),
            PAGE=first.storage.page_size, WIDTH=width, PADDED=1 << (width - 1).bit_length(), TILE=TILE if data.is_cuda else 16, num_warps=4,
        )  # fmt: skip
