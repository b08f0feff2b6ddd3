"""What hooks decided about stored rows in a step that ran in torch, made real by kernels: a few launches for all layers, where settle.py takes dozens for each."""

from __future__ import annotations

import numpy as np
import torch

from ..decode_plan import Moves
from ..layout import Part
from ..resident import Resident
from ..settle import settle_states
from ..step import Step
from .compact import move_to_front, row_arrays
from .moves import move_rows
from .transfer import sent


def settle_by_kernels(moves: Moves | None, step: Step, residents: list[Resident]) -> bool:
    """settle.py's work for all layers, if all of them evicted rows of one raw zone, or moved rows as `moves` says and did nothing else; False: nothing was done.

    Layers and heads hold equal counts (shared scope), so the first layer's are those of all.
    """
    if moves is not None and all(resident.moved and resident.source is None and not resident.states for resident in residents):
        _move(moves, step, residents[0])
    elif len(residents[0].storage.zone_names) == 1 and all(resident.source is not None for resident in residents):
        _compact(step, residents)
    else:
        return False
    return True


def _move(moves: Moves, step: Step, resident: Resident) -> None:
    def counts(part: Part) -> np.ndarray:
        packed = resident.stored_rows[moves.to, part][:, 0]
        return np.stack([resident.zone_rows[moves.to, part][:, 0] - packed, packed, resident.stored_rows[moves.zone, part][:, 0]]).astype(np.int32)

    tables = {name: addresses.table.to(torch.int32) for name, addresses in step.addresses.items()}
    move_rows(resident.storage, moves, tables, {part: counts(part) for part in moves.parts})


def _compact(step: Step, residents: list[Resident]) -> None:
    storage = residents[0].storage
    source = torch.stack([resident.source for resident in residents]).flatten(1, 2).to(torch.int32)  # [layer, row * head, n]
    table = step.addresses[storage.row_stream.name].table[:, 0].to(torch.int32)
    move_to_front(row_arrays(storage), storage.heads, table, source, sent(residents[0].rows[:, 0].astype(np.int32), step.device))
    for resident in residents:
        settle_states(resident)
