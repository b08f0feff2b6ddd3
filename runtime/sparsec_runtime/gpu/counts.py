"""What the host knows of a step's rows, as the numbers that a graph reads: lengths, rows held, and what a choice of pages or tokens needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..decode_plan import At, DecodePlan, TokenChoice
from ..layout import PARTS
from ..sequence import Sequence
from ..storage import Storage
from .buffers import CHOSEN_PAGES, CHOSEN_TOKENS, FIRST_CHOSEN, FIRST_ROWS, HEADER, K_PACKED, K_TAIL, NEWEST_CHOSEN, POSITION, V_PACKED, V_TAIL


def at_of(sequence: Sequence) -> At:
    """What amounts of a plan may depend on, with the step's new row counted."""
    prompt = sequence.prompt_rows
    return At(sequence.params, int(sequence.rows[0, 0]) + 1, 0 if prompt is None else int(prompt[0, 0]))


@dataclass(frozen=True, slots=True)
class StepCounts:
    """tokens: rows that one request can hold in a layer, at most."""

    plan: DecodePlan
    storage: Storage
    tokens: int

    def chosen(self, rows: Iterable[At]) -> int:
        """Tokens that a choice of pages or tokens of these requests can read; 0, and no request is looked at, where there is none."""
        choice, tokens = self.plan.pages, self.plan.tokens
        if tokens is not None:
            return min(self.tokens, max(sum(self._amounts(tokens, at)) for at in rows))
        if choice is None:
            return 0
        page = self.storage.page_size
        return max(max(int(at.params[choice.budget]), int(at.params[choice.least]) * page) for at in rows) + page

    def of(self, sequences: list[Sequence], rows: int, shape: tuple[int, ...]) -> np.ndarray:
        """int32, as DecodeBuffers.counts lies: the header [HEADER, rows], then rows held [1 or layer, entry] of `shape`; padded rows are 0."""
        header, held = np.zeros((HEADER, rows), dtype=np.int32), np.zeros(shape, dtype=np.int32)
        for row, sequence in enumerate(sequences):
            header[POSITION, row] = sequence.length
            self._fill(header, row, sequence)
            if self.storage.layout.scope == "head":
                held.reshape(shape[0], rows, -1)[:, row] = sequence.rows + 1
            else:
                held[:, row] = sequence.rows[: shape[0], 0] + 1
        return np.concatenate((header.ravel(), held.ravel()))

    def _fill(self, header: np.ndarray, row: int, sequence: Sequence) -> None:
        moves, ranked = self.plan.moves, self.plan.asks_firsts(self.storage.layout.position)
        held = int(sequence.rows[0, 0]) + 1
        if moves is not None:
            packed = [int(sequence.zone_rows[moves.to, part][0, 0]) for part in PARTS]
            header[[K_PACKED, V_PACKED], row] = packed
            header[[K_TAIL, V_TAIL], row] = [held - count for count in packed]
        if self.plan.pages is not None:
            self._choose_pages(header, row, sequence, held)
        if self.plan.tokens is not None:
            first, newest, best = self._amounts(self.plan.tokens, at_of(sequence))
            header[[FIRST_CHOSEN, NEWEST_CHOSEN], row] = first, newest
            header[CHOSEN_TOKENS, row] = min(held, first + newest + best)
        if ranked and self.plan.keep is not None:
            header[FIRST_ROWS, row] = self.plan.keep.first(sequence.params)

    def _choose_pages(self, header: np.ndarray, row: int, sequence: Sequence, held: int) -> None:
        choice, page = self.plan.pages, self.storage.page_size
        assert choice is not None, "the step chooses no pages"
        pages = -(-held // page)
        budget = int(sequence.params[choice.budget])
        count = min(pages, max(int(sequence.params[choice.least]), budget // page)) if held > budget else pages
        header[CHOSEN_PAGES, row] = count
        header[CHOSEN_TOKENS, row] = held - (pages - count) * page  # the newest page, the only one that is part-filled, is among them
        header[[FIRST_CHOSEN, NEWEST_CHOSEN], row] = int(sequence.params[choice.first]), int(sequence.params[choice.newest])

    def _amounts(self, choice: TokenChoice, at: At) -> tuple[int, int, int]:
        """First, newest and best tokens that a request reads, where it holds so many."""
        first, newest, best = (min(self.tokens, int(amount(at))) for amount in (choice.first, choice.newest, choice.best))
        return first, newest, best
