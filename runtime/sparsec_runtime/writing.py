"""The start of a layer: RoPE by the method's position rule, and the new rows' K, V, positions and initial states into their slots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .layout import Part
from .resident import Resident
from .zones import write


Write = Callable[[Resident, Tensor, Tensor, Tensor], Tensor]


def write_new_rows(resident: Resident, q: Tensor, k: Tensor, v: Tensor, by_kernel: Write | None = None) -> Tensor:
    """Stores the step's rows of one layer; returns the rotated queries [row, query, kv_head, group, channel].

    by_kernel: does the same for K, V and queries, where K lies turned at its logical position.
    """
    if by_kernel is not None:
        queries = kept_queries = by_kernel(resident, q, k, v)
    else:
        queries, keys, kept_queries = _rotate(resident, q.unflatten(2, (resident.storage.heads, -1)), k)
        _append(resident, "K", keys.transpose(1, 2))
        _append(resident, "V", v.transpose(1, 2))
    _write_row_data(resident)
    _keep_queries(resident, kept_queries.flatten(2, 3))
    return queries


def _rotate(resident: Resident, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries as they attend, keys as they are stored, queries as the ring keeps them."""
    step, rope = resident.step, resident.storage.rope
    if resident.storage.layout.position == "logical":
        cos, sin = step.memo("new angles", 0, lambda: rope.cos_sin(step.query_pos))
        rotated = rope.rotate(queries, cos[:, :, None, None], sin[:, :, None, None])
        return rotated, rope.rotate(keys, cos, sin), rotated
    cos, sin = step.memo("new angles", resident.layer, lambda: rope.cos_sin(_new_ranks(resident)))
    return rope.rotate(queries, cos[:, :, :, None], sin[:, :, :, None]), keys, queries


def _new_ranks(resident: Resident) -> Tensor:
    """Rank of each new row among the rows of its head [row, query, kv_head|1]."""
    step = resident.step
    offset = torch.arange(step.tokens, device=step.device)[:, None]
    return resident.len[:, None] - step.tokens + offset


def _append(resident: Resident, part: Part, values: Tensor) -> None:
    """values [row, kv_head, token, channel] become the newest rows of the newest zone."""
    storage, step = resident.storage, resident.step
    store = storage.stores[storage.newest_zone, part]
    rows = step.memo(f"new rows {part}", resident.layer, lambda: _new_rows(resident, part))
    store.append(step.addresses[store.stream.name], resident.layer, rows, values, None)


def _new_rows(resident: Resident, part: Part) -> Tensor:
    """Row numbers of the new rows in their zone [row, kv_head, token]."""
    step = resident.step
    held = resident.stored_rows[resident.storage.newest_zone, part] - step.tokens
    return step.on_device(held)[..., None] + torch.arange(step.tokens, device=step.device)


def _write_row_data(resident: Resident) -> None:
    storage, step, layer = resident.storage, resident.step, resident.layer
    if storage.positions is None and not storage.token_states and not storage.page_states:
        return
    at = step.addresses[storage.row_stream.name]
    rows = step.memo("new rows", layer, lambda: step.on_device(step.before[:, layer])[..., None] + torch.arange(step.tokens, device=step.device))
    slots = step.memo("new slots", layer, lambda: at.at(layer, rows))
    if storage.positions is not None:
        write(storage.positions, layer, slots, step.query_pos[:, None].expand(slots.shape), None)
    for layout, array in storage.token_states.values():
        array.flat(layer)[slots.reshape(-1)] = layout.initial
    if storage.page_states:
        begun = slots.flatten()[step.memo("rows that begin pages", layer, lambda: _rows_that_begin_pages(resident))] // storage.page_size
        for layout, array in storage.page_states.values():
            array.flat(layer)[begun] = layout.initial


def _rows_that_begin_pages(resident: Resident) -> Tensor:
    """Which of the new rows [row, kv_head, token], flattened, are the first of a page: their numbers."""
    step = resident.step
    rows = step.before[:, resident.layer][..., None] + np.arange(step.tokens)
    return step.on_device(np.flatnonzero(rows % resident.storage.page_size == 0))


def _keep_queries(resident: Resident, queries: Tensor) -> None:
    """The newest queries [row, query, q_head, channel] enter their sequences' rings."""
    for row, sequence in enumerate(resident.step.sequences):
        if sequence.ring is not None:
            kept = min(queries.shape[1], sequence.ring.shape[1])
            slots = resident.step.query_pos[row, -kept:] % sequence.ring.shape[1]
            sequence.ring[resident.layer, slots] = queries[row, -kept:]
