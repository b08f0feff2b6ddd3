"""Evictions of one row of every layer and head of a request: the newest row takes the slot of the one that goes, all layers in one launch.

From then on rows lie in order of position no longer (`Sequence.scattered`): what was in order stays where it lies, and rows from that step on lie
in any slot. So what counts as first goes by the slot, what counts as newest by the position, and ties by the position.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..decode_plan import Keep
from ..layout import PARTS
from ..sequence import Scattered, Sequence
from ..storage import Storage
from .blocks import pow2
from .buffers import DecodeBuffers
from .compact import row_arrays
from .kernels.evict import replace_victims
from .transfer import sent


def replace_rows(storage: Storage, keep: Keep, buffers: DecodeBuffers, sequences: list[Sequence], going: list[bool]) -> None:
    """One row of each request that is `going` goes, the step's new ones counted. buffers: as the step left them."""
    numbers = np.zeros((6, len(sequences)), dtype=np.int32)
    for row, sequence in enumerate(sequences):
        if going[row]:
            numbers[:, row] = _numbers(keep, sequence)
    state = next((array.data for _, array in storage.token_states.values()), None)
    asked = buffers.asked if keep.asked is not None else None
    how = "asked" if asked is not None else "known" if keep.state is None else "state"
    keys, values = (storage.stores[storage.newest_zone, part].rows.data for part in PARTS)
    assert storage.positions is not None, "a method that evicts keeps positions"
    positions, block = storage.positions.data, 2048 if keys.is_cuda else 8
    worth = asked if asked is not None else positions if keep.state is None else storage.token_states[keep.state][1].data
    replace_victims[(len(sequences) * storage.heads, storage.layers)](
        worth, keys, values, positions, positions if state is None else state, buffers.table, sent(numbers, keys.device),
        worth.stride(0), worth.stride(1), keys.stride(0), positions.stride(0), buffers.table.stride(0),
        H=storage.heads, D=storage.head_dim, DP=pow2(storage.head_dim), PAGE=storage.page_size, BLOCK=block, WORTH=how, STATE=state is not None,
        num_warps=1 if how == "known" else 8,
    )  # fmt: skip


def put_in_order(storage: Storage, table: Tensor, sequence: Sequence) -> None:
    """All rows of a request, the step's new one counted, lie in order of position again. table [1, index] of pages."""
    assert storage.positions is not None, "a method that evicts keeps positions"
    slot = torch.arange(int(sequence.rows[0, 0]) + 1, device=table.device)
    unit = table[0, slot // storage.page_size].long() * storage.heads + torch.arange(storage.heads, device=table.device)[:, None]
    line = unit * storage.page_size + slot % storage.page_size
    for layer in range(storage.layers):
        source = line.gather(1, storage.positions.flat(layer)[line].argsort(-1))
        for array in row_arrays(storage):
            flat = array.flat(layer)
            flat[line] = flat[source]
    sequence.scattered = None


def _numbers(keep: Keep, sequence: Sequence) -> tuple[int, ...]:
    """What kernels/evict.py, replace_victims, reads of a request; it is scattered from now on, if it was not."""
    held, position = int(sequence.rows[0, 0]) + 1, sequence.length  # of the step's new row
    if sequence.scattered is None:
        sequence.scattered = Scattered(held - 1, position)
    settled, since = sequence.scattered
    first, newest = min(int(keep.first(sequence.params)), settled), int(keep.newest(sequence.params))
    later = position + 1 - since  # rows since then
    victim = _next_of_ring(sequence, first, held) if keep.state is None and keep.asked is None else 0
    return held, first, settled, settled - max(0, newest - later), max(position + 1 - newest, since), victim


def _next_of_ring(sequence: Sequence, first: int, held: int) -> int:
    """The slot of the oldest row that is none of the first, where none but the oldest ever goes: the slots behind the first are a ring then."""
    assert sequence.scattered is not None and sequence.scattered.settled == held - 1, "where the ends alone stay, they are as many in every step"
    settled, since = sequence.scattered
    return first + (sequence.length - since) % (settled - first) if settled > first else held - 1
