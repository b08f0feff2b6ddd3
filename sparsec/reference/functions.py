"""Operators and scalar functions on aligned tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """`/` yields a ratio; whole numbers divide in float64."""
    if not a.is_floating_point() and not b.is_floating_point():
        return a.double() / b.double()
    return a / b


def _unless_whole(op: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Rounding gives whole numbers, which stay whole."""
    return lambda x: op(x).long() if x.is_floating_point() else x


def _real(op: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: op(x if x.is_floating_point() else x.double())


OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": _divide,
    "//": torch.floor_divide,
    "%": torch.remainder,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
}

COMPARISONS = frozenset({"<", "<=", ">", ">="})


def lenient(op: str, slack: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A comparison that forgives rounding where both sides are real numbers."""

    def compare(a: Tensor, b: Tensor) -> Tensor:
        if not (a.is_floating_point() and b.is_floating_point()):
            return OPERATORS[op](a, b)
        room = torch.where(b.isfinite(), slack * (1 + b.abs()), 0)
        return OPERATORS[op](a, b + room if op in ("<", "<=") else b - room)

    return compare


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "min": lambda *x: reduce(torch.minimum, x),
    "max": lambda *x: reduce(torch.maximum, x),
    "floor": _unless_whole(torch.floor),
    "ceil": _unless_whole(torch.ceil),
    "round": _unless_whole(torch.round),
    "abs": torch.abs,
    "exp": _real(torch.exp),
    "log": _real(torch.log),
    "sqrt": _real(torch.sqrt),
    "sigmoid": _real(torch.sigmoid),
    "relu": torch.relu,
    "clip": lambda x, low, *high: reduce(torch.minimum, high, torch.maximum(x, low)),
    "levels": lambda bits: 2**bits,
}
