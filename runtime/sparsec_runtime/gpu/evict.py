"""Evictions that the host's counts say are due, in a constant number of launches for all layers and without a read of the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..decode_plan import Keep
from ..layout import PARTS
from ..sequence import Sequence
from ..storage import Storage
from .kernels.evict import move_rows, rows_at_the_ends, rows_that_stay
from .kernels.turn import turn_rows

LARGEST = 1 << 15  # rows of one ranking


def evicts_on_device(storage: Storage, keep: Keep | None, tokens: int) -> bool:
    """Whether the kernels below do the method's evictions; else the generated hooks do, in torch."""
    return keep is not None and storage.layout.scope == "shared" and (keep.state is None or tokens <= LARGEST)


def evict_rows(storage: Storage, keep: Keep, table: Tensor, sequences: list[Sequence], kept: list[int]) -> None:
    """Rows of every layer and head, the step's new ones counted, become the `kept` that the rule names. table [row, 1, index] as the step used it."""
    held = [int(sequence.rows[0, 0]) + 1 for sequence in sequences]
    numbers = [held, kept, [keep.first(s.params) for s in sequences], [keep.newest(s.params) for s in sequences]]
    sent = torch.from_numpy(np.array(numbers, dtype=np.int32))
    held_at, kept_at, first, newest = (sent.pin_memory() if table.is_cuda else sent).to(table.device, non_blocking=True)
    places = len(sequences) * storage.heads
    source = torch.empty((storage.layers, places, max(kept)), dtype=torch.int32, device=table.device)
    grid = (places, storage.layers)
    if keep.state is None:
        rows_at_the_ends[(places, storage.layers, -(-max(kept) // 1024))](
            held_at, kept_at, first, source, source.stride(0), source.stride(1), H=storage.heads, TILE=1024
        )
    else:
        state = storage.token_states[keep.state][1].data
        block = 1 << (max(held) - 1).bit_length()
        rows_that_stay[grid](
            state, table, held_at, kept_at, first, newest, source, state.stride(0), table.stride(0), source.stride(0), source.stride(1),
            H=storage.heads, PAGE=storage.page_size, BLOCK=block, num_warps=max(4, min(16, block // 512)),
        )  # fmt: skip
    for data in _moving(storage):
        width = data[0, 0, 0].numel()
        move_rows[grid](
            data, table, source, kept_at, data.stride(0), table.stride(0), source.stride(0), source.stride(1),
            H=storage.heads, PAGE=storage.page_size, WIDTH=width, PADDED=1 << (width - 1).bit_length(), TILE=64 if table.is_cuda else 16,
            num_warps=4,
        )  # fmt: skip


def _moving(storage: Storage) -> list[Tensor]:
    """Everything that belongs to a row: [layer, unit, slot, ...]."""
    arrays = [storage.stores[storage.newest_zone, part].rows for part in PARTS]
    arrays += [] if storage.positions is None else [storage.positions]
    arrays += [array for _, array in storage.token_states.values()]
    return [array.data for array in arrays]


def turn_prompt(storage: Storage, table: Tensor, held: int) -> None:
    """K of one request, stored before RoPE, turned at its positions. table [1, index]."""
    assert storage.positions is not None, "a method that counts positions anew evicts"
    keys, positions, rope = storage.stores[storage.newest_zone, "K"].rows.data, storage.positions.data, storage.rope
    tile = 64 if table.is_cuda else 16
    turn_rows[(-(-held // tile), storage.heads, storage.layers)](
        keys, positions, table, rope.inv_freq, held, rope.scaling, keys.stride(0), positions.stride(0),
        H=storage.heads, D=storage.head_dim, HALF=rope.dim // 2, PAGE=storage.page_size, TILE=tile,
    )  # fmt: skip
