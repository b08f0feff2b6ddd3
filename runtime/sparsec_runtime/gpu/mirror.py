"""Page tables of a batch on the device, kept as the host has them: a step sends the entries that it added, not what was sent before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..sequence import Sequence
from ..tables import PageTable, entries_between
from .transfer import send, sent


@dataclass(frozen=True, slots=True)
class _Known:
    """What a batch row of a table on the device holds: the first `used` [table_row] entries of this request, as of its last shrink."""

    handle: int
    shrinks: int
    used: np.ndarray


class TableMirror:
    """tables: of the device, by stream: [batch row, table_row, index] int32, whose entries beyond a request's pages mean nothing.

    A batch of fewer rows uses the first ones: a request that keeps its row is not sent again when the batch grows or shrinks.
    """

    def __init__(self, tables: Mapping[str, Tensor]) -> None:
        self.tables = tables
        self.rows = min(table.shape[0] for table in tables.values())
        self._known: dict[str, list[_Known | None]] = {name: [None] * table.shape[0] for name, table in tables.items()}

    def update(self, handles: tuple[int, ...], sequences: list[Sequence]) -> int:
        """Makes the batch's rows those of the requests; entries that were sent, all batch rows and streams together. Waits for nothing."""
        return sum(self._update(name, table, handles, [sequence.tables[name] for sequence in sequences]) for name, table in self.tables.items())

    def _update(self, name: str, table: Tensor, handles: tuple[int, ...], own: list[PageTable]) -> int:
        known, places, pages, entries = self._known[name], [], [], 0
        for row, (handle, of) in enumerate(zip(handles, own)):
            assert of.width <= table.shape[2], f"a request of {of.width} pages; the graph was captured for {table.shape[2]}"
            before = known[row]
            if before is not None and before.used is of.used and before.handle == handle:
                continue
            if before is None or before.handle != handle or before.shrinks != of.shrinks:
                send(table[row, :, : of.width], of.pages[:, : of.width])
                entries += of.pages.shape[0] * of.width
            else:
                at = entries_between(before.used, of.used)
                places.append((row * table.shape[1] + at[0]) * table.shape[2] + at[1])
                pages.append(of.pages[at])
            known[row] = _Known(handle, of.shrinks, of.used)
        if places:
            at, new = np.concatenate(places), np.concatenate(pages)
            table.view(-1).scatter_(0, sent(at, table.device), sent(new, table.device))
            entries += len(new)
        return entries
