"""Scores that are hard to rank, and the ranking of the torch ops as a list."""

from __future__ import annotations

import torch
from sparsec_runtime.ops.ranking import Ranking, keep
from torch import Tensor


def scores(kind: str, shape: tuple[int, ...], device: str = "cpu") -> Tensor:
    """fp32 of one kind: distinct numbers, many ties, one number, ties with NaN, infinities and both zeros, or numbers below fp32's least normal one."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    if kind == "ties":
        x = (2 * x).round()
    if kind == "equal":
        x = torch.full(shape, -0.25)
    if kind == "special":
        some = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -1e30, -float("nan")])
        x = torch.where(torch.rand(shape, generator=generator) < 0.5, some[torch.randint(8, shape, generator=generator)], (3 * x).round())
    if kind == "tiny":
        x = x * 1e-44
    return x.to(device)


def best_by_torch(line: Tensor, count: int, first: int, newest: int, width: int) -> list[int]:
    """Indexes of the first, the newest and the best others of one line [entry], `count` in all, ascending, then -1 up to `width`."""
    entry = torch.arange(len(line), device=line.device)
    ends = (entry < first) | (entry >= len(line) - newest)
    assert int(ends.sum()) <= count
    mask = keep(ends[None], [Ranking("top", line[None], torch.ones_like(ends[None]))], upto=torch.tensor([count], device=line.device))
    taken = mask[0].nonzero()[:, 0].tolist()
    return taken + [-1] * (width - len(taken))
