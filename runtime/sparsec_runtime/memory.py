"""A pool of pages: free list and reference counts. Knows nothing of what a page holds; never grows.

Page 0 is the null page: never handed out, what padding of page tables points to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NULL_PAGE = 0


@dataclass(frozen=True, slots=True)
class PageCounts:
    """free + live + cached = total."""

    total: int
    free: int
    live: int
    cached: int


class OutOfPages(Exception):
    """An allocation that the pool cannot serve; raised before anything is changed."""

    def __init__(self, pool: str, needed: int, free: int) -> None:
        super().__init__(f"pool '{pool}': {needed} pages needed, {free} free")
        self.pool, self.needed, self.free = pool, needed, free


class MemoryPool:
    """`total` pages with ids 1..total; a page is free, live (held by a request) or cached (held by a reuse index alone)."""

    def __init__(self, name: str, total: int) -> None:
        assert total >= 0, f"pool '{name}' of {total} pages"
        self.name = name
        self.total = total
        self.references = np.zeros(total + 1, dtype=np.int32)
        self._cached = np.zeros(total + 1, dtype=bool)
        self._stack = np.arange(total, NULL_PAGE, -1, dtype=np.int32)  # the first `free` entries; the last of them, the lowest id at first, goes first
        self.free = total

    @property
    def cached(self) -> int:
        return int(np.count_nonzero(self._cached & (self.references == 0)))

    @property
    def live(self) -> int:
        return int(np.count_nonzero(self.references))

    def counts(self) -> PageCounts:
        return PageCounts(self.total, self.free, self.live, self.cached)

    def allocate(self, count: int) -> np.ndarray:
        """Ids [count] of pages with one reference each, or OutOfPages."""
        if count > self.free:
            raise OutOfPages(self.name, count, self.free)
        pages = self._stack[self.free - count : self.free][::-1].copy()
        self.free -= count
        self.references[pages] = 1
        return pages

    def shuffle(self, generator: np.random.Generator) -> None:
        """Hands free pages out in random order from here on, as after long service."""
        generator.shuffle(self._stack[: self.free])

    def share(self, pages: np.ndarray) -> None:
        """One more reference to each page."""
        assert (self.references[pages] > 0).all() or self._cached[pages].all(), f"pool '{self.name}': sharing a free page"
        np.add.at(self.references, pages, 1)

    def release(self, pages: np.ndarray) -> None:
        """Drops one reference of each page; a page without references is free again unless a reuse index keeps it."""
        if len(pages) == 0:
            return
        different, times = np.unique(pages, return_counts=True)  # sorted; without counts numpy hashes, which takes twenty times as long
        assert different[0] != NULL_PAGE, f"pool '{self.name}': the null page was released"
        assert (times <= self.references[different]).all(), f"pool '{self.name}': a page was released twice"
        self.references[different] -= times.astype(np.int32)
        self._put_back(different[(self.references[different] == 0) & ~self._cached[different]])

    def keep_cached(self, pages: np.ndarray) -> None:
        """Marks pages as held by a reuse index too."""
        assert (self.references[pages] > 0).all(), f"pool '{self.name}': caching a free page"
        self._cached[pages] = True

    def drop_cached(self, pages: np.ndarray) -> None:
        """The reuse index lets go of pages."""
        assert self._cached[pages].all(), f"pool '{self.name}': dropping a page that is not cached"
        self._cached[pages] = False
        self._put_back(pages[self.references[pages] == 0])

    def owned_alone(self, pages: np.ndarray) -> bool:
        """In-place moves are legal on these pages."""
        return bool(((self.references[pages] == 1) & ~self._cached[pages]).all())

    def _put_back(self, pages: np.ndarray) -> None:
        """Free again, the first of them to be handed out first."""
        self._stack[self.free : self.free + len(pages)] = pages[::-1]
        self.free += len(pages)

    def check_conserved(self) -> None:
        """free + live + cached = total, after every commit."""
        assert self.free + self.live + self.cached == self.total, (
            f"pool '{self.name}': {self.free} free + {self.live} live + {self.cached} cached pages are not {self.total}"
        )
