"""Positional sets over the rows of a mask, in position order along the last axis: they count members, whatever lies between.

`members` is any bool tensor [..., token]: the resident rows, the rows of one zone, or the rows that each query sees. `n` is a number or a
tensor of leading axes ([row] or [row, kv_head]). Where fewer members exist, all are taken.
"""

from __future__ import annotations

from torch import Tensor

from .reduce import align

Quantity = Tensor | int


def sink(members: Tensor, n: Quantity) -> Tensor:
    """The first n members."""
    return members & (_rank(members) < align(n, members.ndim))


def oldest(members: Tensor, n: Quantity) -> Tensor:
    """The first n members (of a zone, where `members` is one)."""
    return sink(members, n)


def recent(members: Tensor, n: Quantity) -> Tensor:
    """The last n members."""
    rank = _rank(members)
    return members & (rank >= members.sum(-1, keepdim=True) - align(n, members.ndim))


def every(members: Tensor, n: Quantity) -> Tensor:
    """Members number 0, n, 2n, ..."""
    return members & (_rank(members) % align(n, members.ndim) == 0)


def _rank(members: Tensor) -> Tensor:
    return members.cumsum(-1) - 1
