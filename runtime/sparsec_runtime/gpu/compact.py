"""Moves the rows that stay to the front of their pages: K and V in one launch, and what else belongs to a row two arrays at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import PARTS
from ..storage import Storage
from ..zones import PagedArray
from .blocks import pow2
from .kernels.compact import move_rows

WIDE, NARROW = (64, 4), (512, 4)  # rows of a tile, and warps: of K and V, and of arrays of a number a row
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # moved as they are, whatever they mean


def row_arrays(storage: Storage) -> list[PagedArray]:
    """Everything that belongs to a row of the newest zone: [layer, unit, slot, ...]."""
    arrays = [storage.stores[storage.newest_zone, part].rows for part in PARTS]
    arrays += [] if storage.positions is None else [storage.positions]
    return arrays + [array for _, array in storage.token_states.values()]


def move_to_front(arrays: Sequence[PagedArray], heads: int, table: Tensor, source: Tensor, kept: Tensor) -> None:
    """Row n of every array, layer and place becomes what row source[n] was, for n below kept[row].

    arrays: of one stream, shared by layers and heads; table [row, index], source [layer, row * head, n] ascending and kept [row]: int32.
    """
    for a, b in _pairs(arrays):
        width = a[0, 0, 0].numel()
        tile, warps = (WIDE if width > 1 else NARROW) if table.is_cuda else (16, 4)
        move_rows[(source.shape[1], source.shape[0], 1 if b is a else 2)](
            a, b, table, source, kept, a.stride(0), table.stride(0), source.stride(0), source.stride(1),
            H=heads, PAGE=a.shape[2], WIDTH=width, PADDED=pow2(width), TILE=tile, num_warps=warps,
        )  # fmt: skip


def _pairs(arrays: Sequence[PagedArray]) -> list[tuple[Tensor, Tensor]]:
    """Arrays of equal shape and width in bytes by twos; one that is left goes with itself."""
    alike: dict[tuple[object, ...], list[Tensor]] = {}
    for array in arrays:
        data = array.data.view(_BITS[array.data.element_size()])
        alike.setdefault((data.shape, data.dtype), []).append(data)
    return [(group[n], group[min(n + 1, len(group) - 1)]) for group in alike.values() for n in range(0, len(group), 2)]
