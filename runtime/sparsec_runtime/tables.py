"""Page tables: which pages hold the rows of one request in one stream, for each table row of the stream's scope.

A shared table has one row, a layer table one per layer, a head table one per (layer, KV head). Host side only: numpy int32.
"""

from __future__ import annotations

import numpy as np

from .layout import Scope
from .memory import NULL_PAGE, MemoryPool


def table_rows(scope: Scope, layers: int, heads: int) -> int:
    """Table rows of one request."""
    return {"shared": 1, "layer": layers, "head": layers * heads}[scope]


def by_scope(counts: np.ndarray, scope: Scope) -> np.ndarray:
    """Counts [layer, kv_head] as one number per table row; asserts that the counts are as equal as the scope says."""
    if scope == "head":
        return counts.reshape(-1)
    if scope == "layer":
        assert (counts == counts[:, :1]).all(), f"heads of one layer hold different counts in a layer-scope table: {counts.tolist()}"
        return counts[:, 0]
    assert (counts == counts[0, 0]).all(), f"layers or heads hold different counts in a shared table: {counts.tolist()}"
    return counts[:1, 0]


def pages_for(rows: np.ndarray, page_size: int) -> np.ndarray:
    """Pages that hold so many rows."""
    return -(-rows // page_size)


class PageTable:
    """The pages of one request in one stream: `pages` [table_row, index] padded with the null page, `used` [table_row].

    While `shrinks` stays as it is, entries are only added: those that a table row has beyond an earlier `used` of it. `used` is never changed in place.
    """

    __slots__ = ("pages", "shrinks", "used")

    def __init__(self, rows: int) -> None:
        self.pages = np.full((rows, 4), NULL_PAGE, dtype=np.int32)
        self.used = np.zeros(rows, dtype=np.int64)
        self.shrinks = 0

    @property
    def width(self) -> int:
        """Pages of the longest table row."""
        return int(self.used.max())

    def missing(self, wanted: np.ndarray) -> int:
        """Pages to allocate so that every table row has at least `wanted` [table_row] pages."""
        return int(np.maximum(wanted - self.used, 0).sum())

    def grow(self, wanted: np.ndarray, pool: MemoryPool) -> np.ndarray:
        """Allocates up to `wanted` pages per table row; returns the new page ids."""
        target = np.maximum(wanted, self.used)
        fresh = pool.allocate(int((target - self.used).sum()))
        if len(fresh):
            self._reserve(int(target.max()))
            self.pages[entries_between(self.used, target)] = fresh
            self.used = target
        return fresh

    def shrink(self, wanted: np.ndarray, pool: MemoryPool) -> int:
        """Releases the pages beyond `wanted` per table row; returns how many."""
        target = np.minimum(wanted, self.used)
        beyond = entries_between(target, self.used)
        freed = self.pages[beyond]
        if len(freed):
            pool.release(freed)
            self.pages[beyond] = NULL_PAGE
            self.used = target
            self.shrinks += 1
        return len(freed)

    def _reserve(self, width: int) -> None:
        have = self.pages.shape[1]
        if width > have:
            extra = np.full((self.pages.shape[0], max(width, 2 * have) - have), NULL_PAGE, dtype=np.int32)
            self.pages = np.concatenate((self.pages, extra), axis=1)


def entries_between(used: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Table row and index of the entries that rows of `used` pages lack of `target` [table_row], row by row; few where few rows differ."""
    rows = np.flatnonzero(target > used)
    counts = (target - used)[rows]
    behind = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(rows, counts), np.repeat(used[rows], counts) + behind


def stack(tables: list[PageTable]) -> np.ndarray:
    """Tables of a batch as [row, table_row, index], padded with the null page to the longest."""
    width = max(1, max(table.width for table in tables))
    stacked = np.full((len(tables), tables[0].pages.shape[0], width), NULL_PAGE, dtype=np.int64)
    for row, table in enumerate(tables):
        used = min(width, table.pages.shape[1])
        stacked[row, :, :used] = table.pages[:, :used]
    return stacked
