"""What hooks decided about stored rows in a step that ran in torch, made real by kernels: a few launches for all layers, where settle.py takes dozens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..decode_plan import Moves
from ..layout import Part
from ..resident import Resident
from ..settle import settle_states
from ..step import Step
from ..storage import Storage
from .compact import move_to_front, row_arrays
from .moves import move_rows
from .transfer import sent


def settle_by_kernels(moves: Moves | None, storage: Storage, step: Step, residents: Sequence[Resident]) -> bool:
    """settle.py's work for all layers, if all of them evicted rows of one raw zone, or moved rows as `moves` says and did nothing else; False: nothing was done.

    residents: of all layers in order, folded or not. moves: of a method whose layers and heads hold equal counts, so the first layer's are those of all.
    """
    if moves is not None and all(resident.moved and resident.source is None and not resident.states for resident in residents):
        _move(moves, storage, step, residents[0])
    elif storage.layout.zones[0].raw and len(storage.zone_names) == 1 and all(resident.source is not None for resident in residents):
        _compact(storage, step, residents)
    else:
        return False
    return True


def _move(moves: Moves, storage: Storage, step: Step, resident: Resident) -> None:
    def counts(part: Part) -> np.ndarray:
        requests = len(step.sequences)  # those of the first layer
        packed = resident.stored_rows[moves.to, part][:requests, 0]
        arriving = resident.zone_rows[moves.to, part][:requests, 0] - packed
        return np.stack([arriving, packed, resident.stored_rows[moves.zone, part][:requests, 0]]).astype(np.int32)

    tables = {name: addresses.table.to(torch.int32) for name, addresses in step.addresses.items()}
    move_rows(storage, moves, tables, {part: counts(part) for part in moves.parts})


def _compact(storage: Storage, step: Step, residents: Sequence[Resident]) -> None:
    """The kernel moves rows of [row, head] in layers of one table. Where each layer or head has its own, they are rows of one layer as well."""
    scope, heads = storage.layout.scope, storage.heads
    source = torch.cat(_of_equal_width([resident.source for resident in residents])).to(torch.int32)  # [layer * row, kv_head, n]
    rows = np.concatenate([resident.rows for resident in residents])  # [layer * row, kv_head]
    table, requests = step.addresses[storage.row_stream.name].table, len(step.sequences)
    if scope == "shared":
        layers, table, kept, heads_of_table = storage.layers, table[:, 0], rows[:requests, 0], heads
    elif scope == "layer":
        layers, table, kept, heads_of_table = 1, table.transpose(0, 1).flatten(0, 1), rows[:, 0], heads
    else:
        layers, table, kept, heads_of_table = 1, table.unflatten(1, (-1, heads)).transpose(0, 1).flatten(0, 2), rows.reshape(-1), 1
    source = source.flatten(0, 1).unflatten(0, (layers, -1))
    move_to_front(row_arrays(storage), heads_of_table, table.to(torch.int32), source, sent(kept.astype(np.int32), step.device))
    for resident in residents:
        settle_states(resident)


def _of_equal_width(sources: Sequence[Tensor]) -> list[Tensor]:
    """Sources [row, kv_head, n] with any entries behind those that count."""
    width = max(source.shape[2] for source in sources)
    return [source if source.shape[2] == width else F.pad(source, (0, width - source.shape[2])) for source in sources]
