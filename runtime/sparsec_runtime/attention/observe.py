"""Scores that hooks read: logits and probs of some queries over the resident rows, in fp32, beside attention itself.

They are computed apart from the output, so that observing never changes what attention returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

BLOCK_SCORES = 1 << 22  # fp32 scores in one block of queries
DEVICE_SCORES = 1 << 26  # the same on a GPU, where a block costs launches


@dataclass(eq=False)
class QueryBlock:
    """Some queries of one layer. Q [row, query, kv_head, group, channel] rotated; keys [row, kv_head, token, channel].

    query_valid [row, query] marks real queries; the others (a window longer than the sequence, or than a row's own width) have probs 0.
    A query sees the rows of mask [row, query, kv_head|1, group|1, token]; where there is none, those at positions row_pos [row, kv_head, token] up to
    its own, -1 being no row.
    """

    Q: Tensor
    query_pos: Tensor
    query_valid: Tensor
    keys: Tensor = field(repr=False)
    mask: Tensor | None = field(default=None, repr=False)
    scale: float = 1.0
    row_pos: Tensor | None = field(default=None, repr=False)
    _logits: Tensor | None = field(default=None, repr=False)
    _probs: Tensor | None = field(default=None, repr=False)

    @property
    def logits(self) -> Tensor:
        """Scaled scores [row, query, kv_head, group, token] fp32; -inf where a query does not attend."""
        if self._logits is None:
            rows, queries, heads, group, _ = self.Q.shape
            q = (self.Q.float() * self.scale).permute(0, 2, 1, 3, 4).flatten(2, 3)
            scores = q @ self.keys.float().transpose(-1, -2)
            scores = scores.unflatten(2, (queries, group)).permute(0, 2, 1, 3, 4)
            self._logits = scores.masked_fill_(~self.seen, float("-inf"))
        return self._logits

    @property
    def probs(self) -> Tensor:
        """Softmax of the logits over the rows attended to; 0 elsewhere."""
        if self._probs is None:
            nothing = ~self.seen.any(-1, keepdim=True)  # a softmax over no row is not a number
            self._probs = torch.softmax(self.logits, -1).masked_fill_(nothing, 0.0)
        return self._probs

    def mass(self, over_i: Literal["sum", "mean"]) -> Tensor:
        """The sum or mean over the real queries of probs, [row, kv_head, group, token] fp32; of no query: 0.

        On a GPU, where positions alone say what a query sees, no logit is written.
        """
        if self.Q.is_cuda and self.mask is None and self._probs is None:
            from ..gpu.window import window_mass  # imports Triton

            assert self.row_pos is not None, "without a mask, positions say what a query sees"
            total = window_mass(self.Q, self.keys, self.row_pos, self.query_pos, self.query_valid, self.scale)
        else:
            total = self.probs.sum(1)
        return total if over_i == "sum" else total / self.query_valid.sum(1).clamp(min=1)[:, None, None, None]

    @property
    def seen(self) -> Tensor:
        """[row, query, kv_head|1, group|1, token]"""
        mask = self.mask
        if mask is None:
            assert self.row_pos is not None, "without a mask, positions say what a query sees"
            mask = ((self.row_pos[:, None] <= self.query_pos[:, :, None, None]) & (self.row_pos >= 0)[:, None])[:, :, :, None]
        return mask & self.query_valid[:, :, None, None, None]


def blocks_of(queries: int, heads: int, tokens: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Ranges of queries whose scores fit one block."""
    scores = DEVICE_SCORES if device.type == "cuda" else BLOCK_SCORES
    size = max(1, scores // max(1, heads * tokens))
    for first in range(0, queries, size):
        yield first, min(first + size, queries)
