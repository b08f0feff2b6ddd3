"""top, bottom, nucleus and `keep A then B upto N`, with the language's exact order.

Order of a ranking: better score first, ties to the lower index (over several axes: the earlier axis decides first), NaN after every
number, rows that are no candidates never. One stable sort of integer keys gives exactly that on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .reduce import align, count as count_members

Axes = int | tuple[int, ...]
Quantity = Tensor | int


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """One `then` step. `count` None: as many as `upto` leaves. `axes` are ranked jointly, e.g. (1, 2) for top[t, h] of [row, kv_head, token]."""

    kind: Literal["top", "bottom"]
    score: Tensor
    candidates: Tensor
    count: Quantity | None = None
    axes: Axes = -1


def top(score: Tensor, candidates: Tensor | None, count: Quantity, axes: Axes = -1) -> Tensor:
    """Mask of the `count` best candidates along `axes`; count has the shape of the score without `axes`, or fewer leading axes."""
    return _select(score, candidates, count, axes, descending=True)


def bottom(score: Tensor, candidates: Tensor | None, count: Quantity, axes: Axes = -1) -> Tensor:
    """Mask of the `count` smallest candidates."""
    return _select(score, candidates, count, axes, descending=False)


def nucleus(score: Tensor, candidates: Tensor | None, mass: Tensor | float, axes: Axes = -1) -> Tensor:
    """Mask of the fewest best candidates whose scores sum to at least `mass` (at least one, where there is a candidate)."""
    line = _Line(score, candidates, axes)
    order = line.order(descending=True)
    worth = torch.where(line.candidates, line.score, torch.zeros_like(line.score)).gather(-1, order)
    before = worth.cumsum(-1) - worth
    taken = before < align(mass, before.ndim)
    taken[..., 0] = True
    return line.mask(order, taken)


def keep(protected: Tensor, then: Sequence[Ranking], upto: Quantity | None = None) -> Tensor:
    """`protected then ... upto N`: every ranking takes from the rows not yet taken; N counts all that is kept, the protected included.

    The count is over the axes of each ranking (over heads too for a joint ranking), the members of `protected` among them.
    """
    taken = protected
    for ranking in then:
        left = ranking.candidates & ~taken
        score, left, taken = torch.broadcast_tensors(ranking.score, left, taken)
        allowed = ranking.count
        if upto is not None:
            held = count_members(taken, ranking.axes)
            room = (align(upto, held.ndim) - held).clamp(min=0)
            allowed = room if allowed is None else torch.minimum(room, torch.as_tensor(align(allowed, room.ndim), device=room.device))
        assert allowed is not None, "a ranking needs a count or an `upto`"
        taken = taken | _select(score, left, allowed, ranking.axes, descending=ranking.kind == "top")
    return taken


def _select(score: Tensor, candidates: Tensor | None, count: Quantity, axes: Axes, descending: bool) -> Tensor:
    line = _Line(score, candidates, axes)
    order = line.order(descending)
    ranks = torch.arange(order.shape[-1], device=order.device)
    taken = (ranks < align(count, order.ndim)).expand(order.shape)
    return line.mask(order, taken)


class _Line:
    """A score with its ranked axes moved last and joined to one line, in axis order."""

    def __init__(self, score: Tensor, candidates: Tensor | None, axes: Axes) -> None:
        if candidates is not None:
            score, candidates = torch.broadcast_tensors(score, candidates)
        else:
            candidates = torch.ones_like(score, dtype=torch.bool)
        ranked = (axes,) if isinstance(axes, int) else axes
        self._axes = tuple(sorted(axis % score.ndim for axis in ranked))
        self._last = tuple(range(-len(self._axes), 0))
        self._moved = torch.movedim(score, self._axes, self._last).shape
        self.score, self.candidates = self._join(score), self._join(candidates)

    def _join(self, x: Tensor) -> Tensor:
        return torch.movedim(x, self._axes, self._last).flatten(-len(self._axes))

    def order(self, descending: bool) -> Tensor:
        """Indices along the line, best first."""
        keys = _keys(self.score)
        worst = torch.iinfo(keys.dtype).min
        if not descending:
            keys = -keys
        keys = torch.where(torch.isnan(self.score), worst + 1, keys) if self.score.is_floating_point() else keys
        keys = torch.where(self.candidates, keys, worst)
        return keys.sort(dim=-1, descending=True, stable=True).indices

    def mask(self, order: Tensor, taken: Tensor) -> Tensor:
        """The taken ranks as a mask of the score's own shape."""
        chosen = torch.zeros_like(self.candidates).scatter_(-1, order, taken) & self.candidates
        return torch.movedim(chosen.unflatten(-1, self._moved[-len(self._axes) :]), self._last, self._axes)


def _keys(score: Tensor) -> Tensor:
    """Integers in the order of the scores: the bits of a float, with negative numbers mirrored; 0.0 and -0.0 are one."""
    if not score.is_floating_point():
        return score.to(torch.int64)
    if score.dtype == torch.float64:
        bits = (score + 0.0).contiguous().view(torch.int64)
        return torch.where(bits < 0, -(bits & 0x7FFFFFFFFFFFFFFF), bits)
    bits = (score.float() + 0.0).contiguous().view(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
