"""Whole shares of a whole: largest remainder."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor

import torch
from torch import Tensor

from .reduce import align

# Remainders closer than this are a tie: raw shares come out of float64 arithmetic, where 5 may read 4.999999999999999.
RESOLUTION = 9  # decimal digits


def apportion(raw: Tensor, total: Tensor | int) -> Tensor:
    """raw [..., member] shares that add up to about `total` [...] -> int64 that add up to it exactly.

    Each gets its share rounded down; what is left goes one by one to the largest remainders, ties to the lower index.
    """
    raw = raw.to(torch.float64)
    floors = (raw + 10.0**-RESOLUTION).floor()
    remainder = (raw - floors).round(decimals=RESOLUTION)
    order = remainder.sort(dim=-1, descending=True, stable=True).indices
    left = align(total, floors.ndim) - floors.sum(-1, keepdim=True)
    members = raw.shape[-1]
    ranks = torch.arange(members, device=raw.device)
    # left may exceed the members (or be negative) when the shares do not add up: whole rounds first.
    extra = left // members + (ranks < left % members)
    return (floors + torch.zeros_like(floors).scatter_(-1, order, extra.expand(floors.shape).to(floors.dtype))).to(torch.int64)


def whole_shares(raw: Iterable[float], total: int) -> list[int]:
    """The same shares on the host, for rows_after."""
    shares = list(raw)
    whole = [floor(share + 10.0**-RESOLUTION) for share in shares]
    left = total - sum(whole)
    order = sorted(range(len(shares)), key=lambda member: (-round(shares[member] - whole[member], RESOLUTION), member))
    for rank, member in enumerate(order):
        whole[member] += left // len(order) + (rank < left % len(order))
    return whole
