"""Evictions that the host's counts say are due, in a constant number of launches for all layers and without a read of the device.

A request that loses one row has its newest row moved to that one's slot (one_out.py), if its method allows rows in any order; one that loses several has
those that stay moved to the front of its pages, in order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..decode_plan import DecodePlan, Keep
from ..sequence import Sequence
from ..storage import Storage
from .blocks import pow2
from .buffers import DecodeBuffers
from .compact import move_to_front, row_arrays
from .kernels.evict import rows_at_the_ends, rows_that_stay
from .kernels.turn import turn_rows
from .one_out import put_in_order, replace_rows
from .ranking import part_of, rank_best, rank_pairs, room_for_pairs, warps_of
from .transfer import sent


def evicts_on_device(storage: Storage) -> bool:
    """Whether the kernels below do the evictions of a method that has a Keep; else the generated hooks do, in torch."""
    return storage.layout.scope == "shared"


def evict(storage: Storage, plan: DecodePlan, buffers: DecodeBuffers, sequences: list[Sequence], kept: list[int]) -> None:
    """Of each request the `kept` rows that the plan's rule names stay, the step's new ones counted. buffers: as the step left them."""
    assert plan.keep is not None, "the plan evicts nothing"
    held = [int(sequence.rows[0, 0]) + 1 for sequence in sequences]
    single = [plan.any_order and before - after == 1 for before, after in zip(held, kept)]
    if any(single):
        replace_rows(storage, plan.keep, buffers, sequences, single)
    if any(before > after and not one for before, after, one in zip(held, kept, single)):
        for row, sequence in enumerate(sequences):
            if sequence.scattered is not None and held[row] > kept[row] and not single[row]:
                put_in_order(storage, buffers.table[row], sequence)
        left = [after if one else before for before, after, one in zip(held, kept, single)]
        _evict_in_order(storage, plan.keep, buffers, sequences, left, kept)


def _evict_in_order(storage: Storage, keep: Keep, buffers: DecodeBuffers, sequences: list[Sequence], held: list[int], kept: list[int]) -> None:
    """The `held` rows of every layer and head, which lie in order, become the `kept` of them that the rule names."""
    table = buffers.table
    numbers = [held, kept, [keep.first(s.params) for s in sequences], [keep.newest(s.params) for s in sequences]]
    held_at, kept_at, first, newest = sent(np.array(numbers, dtype=np.int32), table.device)
    places = len(sequences) * storage.heads
    source = torch.empty((storage.layers, places, max(kept)), dtype=torch.int32, device=table.device)
    if keep.asked is not None:
        _rank_by_newest(buffers.asked[:, : len(sequences)], (held_at, kept_at, first, newest), source)
    elif keep.state is None:
        rows_at_the_ends[(places, storage.layers, -(-max(kept) // 1024))](
            held_at, kept_at, first, source, source.stride(0), source.stride(1), H=storage.heads, TILE=1024
        )
    else:
        _rank_rows(storage, storage.token_states[keep.state][1].data, table, (held_at, kept_at, first, newest), max(held), source)
    move_to_front(row_arrays(storage), storage.heads, table, source, kept_at)


def _rank_rows(storage: Storage, state: Tensor, table: Tensor, counts: tuple[Tensor, ...], held: int, source: Tensor) -> None:
    """source [layer, place, n] from the rows of the largest state; counts: rows held, that stay, first and newest, each [row]."""
    layers, places, best = source.shape
    part = part_of(held, best)
    in_parts = part < held
    keys, rows = room_for_pairs(layers * places, held, part, best, source.device) if in_parts else (source, source)
    slots = rows.shape[2]
    rows_that_stay[(places, layers, rows.shape[1] if in_parts else 1)](
        state, table, *counts, keys, rows, state.stride(0), table.stride(0), slots,
        H=storage.heads, PAGE=storage.page_size, BLOCK=part, IN_PARTS=in_parts, PADDED=pow2(slots), num_warps=warps_of(part),
    )  # fmt: skip
    if in_parts:
        rank_pairs((keys, rows), counts[1], source, storage.heads)


def _rank_by_newest(asked: Tensor, counts: tuple[Tensor, ...], source: Tensor) -> None:
    """source [layer, place, n], alike for all heads, from the rows that the newest query gives most: asked [layer, row, token]."""
    layers, rows, tokens = asked.shape
    held, kept, first, newest = (count.repeat(layers) for count in counts)
    best = torch.empty((layers * rows, 1, source.shape[2]), dtype=torch.int32, device=source.device)
    rank_best(asked.reshape(layers * rows, 1, tokens), held, kept, best, ends=(first, newest))
    source.copy_(best.view(layers, rows, 1, -1).expand(-1, -1, source.shape[1] // rows, -1).flatten(1, 2))


def turn_prompt(storage: Storage, table: Tensor, held: int) -> None:
    """K of one request, stored before RoPE, turned at its positions. table [1, index]."""
    assert storage.positions is not None, "a method that counts positions anew evicts"
    keys, positions, rope = storage.stores[storage.newest_zone, "K"].rows.data, storage.positions.data, storage.rope
    tile = 64 if table.is_cuda else 16
    turn_rows[(-(-held // tile), storage.heads, storage.layers)](
        keys, positions, table, rope.inv_freq, held, rope.scaling, keys.stride(0), positions.stride(0),
        H=storage.heads, D=storage.head_dim, HALF=rope.dim // 2, PAGE=storage.page_size, TILE=tile,
    )  # fmt: skip
