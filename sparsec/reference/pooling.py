"""Reductions that keep their axis, on plain tensors [..., n]. `mask` says what takes part, `line` which entries are neighbours at all
(resident rows): pools slide over the line, and what takes no part counts as padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def softmax(x: Tensor, mask: Tensor, line: Tensor, width: int) -> Tensor:
    """Over what takes part; 0 elsewhere."""
    return torch.nan_to_num(x.masked_fill(~mask, -torch.inf).softmax(-1))


def cumsum(x: Tensor, mask: Tensor, line: Tensor, width: int) -> Tensor:
    return x.masked_fill(~mask, 0).cumsum(-1)


def maxpool(x: Tensor, mask: Tensor, line: Tensor, width: int) -> Tensor:
    """Padding is -inf."""
    return _pooled(x.masked_fill(~mask, -torch.inf), mask, line, lambda row: F.max_pool1d(row, width, 1, width // 2))


def avgpool(x: Tensor, mask: Tensor, line: Tensor, width: int) -> Tensor:
    """Divides by the width everywhere: padding is 0 and counts."""
    return _pooled(x.masked_fill(~mask, 0), mask, line, lambda row: F.avg_pool1d(row, width, 1, width // 2))


def _pooled(x: Tensor, mask: Tensor, line: Tensor, pool: Callable[[Tensor], Tensor]) -> Tensor:
    """Each row of x is compressed to its line, pooled, and put back; 0 where nothing is defined."""
    out = torch.zeros_like(x)
    flat_x, flat_line, flat_out = x.reshape(-1, x.shape[-1]), line.reshape(-1, x.shape[-1]), out.view(-1, x.shape[-1])
    for n in range(flat_x.shape[0]):
        places = flat_line[n].nonzero().squeeze(-1)
        if places.numel():
            flat_out[n, places] = pool(flat_x[n, places][None])[0, : places.numel()]
    return out.masked_fill(~mask, 0)


SLIDING: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    "softmax": softmax,
    "cumsum": cumsum,
    "maxpool": maxpool,
    "avgpool": avgpool,
}
