"""The host's side of sampling inside a graph: what each row asks for as tensors of fixed addresses, sent when the batch changes, and the launches.

Rows with logprobs or a logit bias are not sampled here (row_sampling.py): ../sampler.py samples them, from the graph's logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..draw import least_weight, scale_of
from .blocks import pow2
from .kernels import sample as k
from .kernels.block import best_of_part, best_of_row
from .kernels.narrow import PASSES, WAYS, narrow, weigh_and_mark
from .kernels.threshold import find_threshold
from .row_sampling import RowSampling
from .transfer import send, sent


GREEDY_PART = 2048  # ids of a program, at most


def launch_greedy(logits: Tensor, best: Tensor, best_id: Tensor, ids: Tensor, part: int, chain: Mapping[str, bool]) -> None:
    """ids [row] int64: the largest logit's of logits [row, vocab]. best fp32, best_id int32 [row, part]: scratch, a place for each `part` ids."""
    rows, parts = best.shape
    best_of_part[(rows, parts)](logits, best, best_id, logits.shape[1], parts, BLOCK=part, **chain)
    best_of_row[(rows,)](best, best_id, ids, parts, BLOCK=pow2(parts), **chain)


@dataclass(frozen=True, slots=True)
class SampleSizes:
    """part: ids of one program; group: ids that have one largest logit; listed: candidates of a row that are searched in registers; tile: few of them;
    words: of 32 marks, read at once.

    pass_warps, find_warps: of the programs of kernels/narrow.py and kernels/threshold.py. Narrowing sums at most 64 ids a thread.
    """

    part: int = 2048
    group: int = 128
    listed: int = 8192
    tile: int = 1024
    words: int = 4096
    pass_warps: int = 2
    find_warps: int = 16


class SampleBuffers:
    """Of one batch bucket: what rows ask for, and scratch. Rows that no one has set are greedy."""

    def __init__(self, rows: int, vocab: int, device: torch.device, sizes: SampleSizes | None = None) -> None:
        self.rows, self.vocab, self.device = rows, vocab, device
        self.sizes = sizes or SampleSizes()
        self.parts, self.groups = -(-vocab // self.sizes.part), -(-vocab // self.sizes.group)
        self.asked = torch.zeros((k.ASKED, rows), dtype=torch.int64, device=device)
        self.shares = torch.zeros(rows, dtype=torch.float64, device=device)
        self.scales = torch.ones((k.SCALES, rows), dtype=torch.float32, device=device)
        self.best = torch.empty((rows, self.groups), dtype=torch.float32, device=device)
        self.best_id = torch.empty((rows, self.groups), dtype=torch.int32, device=device)
        self.found = torch.empty((k.FOUND, rows), dtype=torch.int64, device=device)
        self.top = torch.empty(rows, dtype=torch.float32, device=device)
        self.sums = torch.empty((rows, PASSES * WAYS), dtype=torch.int64, device=device)
        self.list = torch.empty((rows, self.sizes.listed), dtype=torch.int32, device=device)
        self.marks = torch.empty((rows, self.parts * self.sizes.part // 32), dtype=torch.int32, device=device)
        self.weights = torch.empty((rows, self.parts), dtype=torch.int64, device=device)
        self.nothing = torch.zeros(1, dtype=torch.int32, device=device)
        self.prompt: Tensor | None = None  # [row, vocab] int8, 1 where the prompt has the id; None until a row has penalties
        self.count: Tensor | None = None  # [row, vocab] int32, how often the row generated the id

    def set(self, rows: Sequence[RowSampling]) -> None:
        """What the batch's rows ask for from the next step on; others become greedy."""
        asked = np.zeros((k.ASKED, self.rows), dtype=np.int64)
        shares = np.zeros(self.rows, dtype=np.float64)
        scales = np.ones((k.SCALES, self.rows), dtype=np.float32)
        for n, row in enumerate(rows):
            p = row.params
            top_k = p.top_k if p.top_k < self.vocab else 0
            mode = 0 if p.greedy else k.SAMPLED | (k.BY_K if top_k else 0) | (k.BY_P if p.top_p < 1 else 0)
            asked[:, n] = (mode, top_k, least_weight(p), p.row_seed, len(row.generated))
            shares[n] = p.top_p
            scales[:, n] = (scale_of(p), p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
        for target, values in ((self.asked, asked), (self.shares, shares), (self.scales, scales)):
            send(target, values)
        if any(row.params.penalised for row in rows):
            self._count(rows)

    @property
    def counted(self) -> list[Tensor]:
        """What a step changes for the next one."""
        return [self.asked] if self.count is None else [self.asked, self.count]

    def _count(self, rows: Sequence[RowSampling]) -> None:
        if self.prompt is None or self.count is None:
            self.prompt = torch.empty((self.rows, self.vocab), dtype=torch.int8, device=self.device)
            self.count = torch.empty((self.rows, self.vocab), dtype=torch.int32, device=self.device)
        self.prompt.zero_()
        self.count.zero_()
        for n, row in enumerate(rows):
            if row.params.penalised:
                self._mark(self.prompt[n], sorted(set(row.prompt)))
                self._mark(self.count[n], row.generated)

    def _mark(self, line: Tensor, ids: Sequence[int]) -> None:
        """line[id] += 1 for each."""
        if ids:
            there = sent(np.asarray(ids, dtype=np.int64), self.device)
            line.scatter_add_(0, there, torch.ones(len(ids), dtype=line.dtype, device=self.device))

    def launch(self, logits: Tensor, ids: Tensor, penalties: bool, chain: Mapping[str, bool]) -> None:
        """ids [row] int64 of logits [row, vocab]; -1 where a logit is no number. Counts the step, and with penalties the ids."""
        assert not penalties or self.count is not None, "no row has penalties"
        rows, vocab, sizes = self.rows, self.vocab, self.sizes
        every, each = (rows, self.parts), (rows,)
        prompt, count = (self.prompt, self.count) if penalties else (self.nothing, self.nothing)
        history = (self.scales, prompt, count)
        options = {"PENALTIES": penalties, "enable_fp_fusion": False, **chain}
        part = {"PART": sizes.part, **options}
        grouped = {"GROUP": sizes.group, **part}
        asked = (self.asked, self.shares, *history, self.found, self.top)
        k.largest_of_groups[every](logits, *history, self.best, self.best_id, rows, vocab, self.groups, **grouped)
        k.begin_draw[each](
            self.best, self.best_id, self.asked, self.found, self.top, self.sums, ids, rows, self.groups,
            BLOCK=pow2(self.groups), SUMS=PASSES * WAYS, num_warps=4, **chain,
        )  # fmt: skip
        for done in range(PASSES):
            narrow[every](logits, *asked, self.sums, rows, vocab, PASS=done, LIST=sizes.listed, num_warps=sizes.pass_warps, **part)
        weigh_and_mark[every](
            logits, *asked, self.best, self.sums, self.marks.view(torch.uint8), self.weights, rows, vocab, self.groups, self.parts,
            num_warps=sizes.pass_warps, **grouped,
        )  # fmt: skip
        find_threshold[each](
            logits, *asked, self.sums, self.marks, self.list, self.weights, rows, vocab, self.parts, self.marks.shape[1],
            TILE=sizes.tile, LIST=sizes.listed, WORDS=sizes.words, ID_BITS=vocab.bit_length(), PARTS=pow2(self.parts),
            num_warps=sizes.find_warps, **part,
        )  # fmt: skip
        k.draw[each](
            logits, self.asked, *history, self.found, self.top, self.weights, ids, rows, vocab, self.parts,
            BLOCK=pow2(self.parts), **part,
        )  # fmt: skip
