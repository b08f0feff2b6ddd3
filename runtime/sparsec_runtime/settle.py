"""commit_step's work on stored rows: what hooks decided for a layer, or for many at once (fold.py), becomes what the pools hold.

For each zone and part: rows that stay are moved together in place, on pages that the request owns alone, all read before any is
written; rows that came from newer zones are appended, encoded if the zone stores codes. Row data follows. Vectorised over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .layout import PARTS, Part
from .resident import Resident
from .zones import Addresses, PagedArray, Store, pick, write


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The final rows of one zone part: entries [low, high) of the token axis, of which the first `own` were there before. [row, kv_head]"""

    low: np.ndarray
    high: np.ndarray
    own: np.ndarray
    stored_low: np.ndarray


def settle(resident: Resident) -> None:
    """Writes the layer's new states, compacts what was evicted from and encodes what was moved."""
    if resident.source is not None or resident.moved:
        for part in PARTS:
            _settle_part(resident, part)
    _settle_row_data(resident)


def _settle_part(resident: Resident, part: Part) -> None:
    storage = resident.storage
    runs = {zone: _run_of(resident, zone, part) for zone in storage.zone_names}
    arriving = {zone: _arrivals(resident, zone, run, part) for zone, run in runs.items()}  # read before anything is written
    for zone, run in runs.items():
        store = storage.stores[zone, part]
        at = resident.step.addresses[store.stream.name]
        _compact(resident, store, at, run)
        if arriving[zone] is not None:
            rows, values, valid = arriving[zone]
            store.append(at, resident.layer, rows, values, valid)


def _run_of(resident: Resident, zone: str, part: Part) -> _Run:
    low, high = resident.zone_range(zone, part, resident.zone_rows)
    stored_low, stored_high = resident.zone_range(zone, part, resident.stored_rows)
    if resident.source is not None and len(resident.storage.zone_names) == 1:
        own = high - low  # whatever stays was here
    elif resident.source is None:
        own = np.maximum(np.minimum(high, stored_high) - np.maximum(low, stored_low), 0)
    else:
        on_device = resident.step.on_device
        inside = (resident.source >= on_device(stored_low)[..., None]) & (resident.source < on_device(stored_high)[..., None])
        placed = (resident.order >= on_device(low)[..., None]) & (resident.order < on_device(high)[..., None])
        own = (inside & placed).sum(-1).cpu().numpy()
    return _Run(low, high, own, stored_low)


def _arrivals(resident: Resident, zone: str, run: _Run, part: Part) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Rows [row, kv_head, n] of the zone that arrive, their values, and which are real (None: all)."""
    coming = run.high - run.low - run.own
    if not coming.any():
        return None
    offset = torch.arange(int(coming.max()), device=resident.step.device)
    rows = resident.step.on_device(run.own)[..., None] + offset
    source = _sources(resident, resident.step.on_device(run.low)[..., None] + rows)
    return rows, _from_newer(resident, zone, part, source), _below(resident, offset, coming)


def _from_newer(resident: Resident, zone: str, part: Part, source: Tensor) -> Tensor:
    """Values of stored rows [row, kv_head, n] that lie in zones newer than this one: an old zone, often the longest, is not decoded for them."""
    storage, step = resident.storage, resident.step
    found: Tensor | None = None
    for newer in storage.zone_names[storage.zone_names.index(zone) + 1 :]:
        rows = resident.stored_rows[newer, part]
        if not rows.any():
            continue
        low = step.on_device(resident.zone_range(newer, part, resident.stored_rows)[0])[..., None]
        store = storage.stores[newer, part]
        here = pick(store.read(step.addresses[store.stream.name], resident.layer, int(rows.max())), source - low)
        found = here if found is None else torch.where((source >= low)[..., None], here, found)
    assert found is not None, f"rows arrive in zone '{zone}' from no newer zone"
    return found


def _compact(resident: Resident, store: Store, at: Addresses, run: _Run) -> None:
    """Moves the zone's own rows to its front."""
    longest = int(run.own.max())
    if resident.source is None and (run.low == run.stored_low).all() or longest == 0:
        return
    rows = torch.arange(longest, device=resident.step.device).expand(*run.own.shape, longest)
    source = _plus(resident, _sources(resident, _plus(resident, rows, run.low)), -run.stored_low)
    store.compact(at, resident.layer, source, rows, _below(resident, rows, run.own))


def _below(resident: Resident, numbers: Tensor, counts: np.ndarray) -> Tensor | None:
    """Which of the numbers [.., n] are below counts [row, kv_head]; None where none ends before another."""
    return None if (counts == counts.max()).all() else numbers < resident.step.on_device(counts)[..., None]


def _plus(resident: Resident, numbers: Tensor, counts: np.ndarray) -> Tensor:
    """numbers [row, kv_head, n] plus counts [row, kv_head]."""
    return numbers + resident.step.on_device(counts)[..., None] if counts.any() else numbers


def _sources(resident: Resident, entries: Tensor) -> Tensor:
    """Stored rows of entries [row, kv_head, n] of the token axis."""
    return entries if resident.source is None else pick(resident.source, entries)


def _settle_row_data(resident: Resident) -> None:
    storage = resident.storage
    if resident.source is not None and storage.positions is not None:
        slots = _slots(resident)
        write(storage.positions, resident.layer, slots, resident.pos, _valid(resident))
    settle_states(resident)


def settle_states(resident: Resident) -> None:
    """Writes the layer's new states to the rows and pages that are held from here on."""
    storage = resident.storage
    for name, values in resident.states.items():
        if name in storage.token_states:
            write(storage.token_states[name][1], resident.layer, _slots(resident), values, _valid(resident))
        else:
            _write_pages(resident, storage.page_states[name][1], _addresses(resident), values)


def _addresses(resident: Resident) -> Addresses:
    return resident.step.addresses[resident.storage.row_stream.name]


def _slots(resident: Resident) -> Tensor:
    """Slots [row, kv_head, n] of the rows that are held."""
    return _addresses(resident).slots(resident.layer)[:, :, : resident.width]


def _valid(resident: Resident) -> Tensor | None:
    return None if (resident.rows == resident.rows[0, 0]).all() else resident.valid


def _write_pages(resident: Resident, array: PagedArray, at: Addresses, values: Tensor) -> None:
    pages = torch.arange(resident.pages, device=resident.step.device)
    held = pages * resident.storage.page_size < resident.len[..., None]
    write(array, resident.layer, at.units(resident.layer)[:, :, : resident.pages], values, held)
