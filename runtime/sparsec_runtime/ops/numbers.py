"""Arithmetic on quantities: Python numbers or small tensors [row, ...]. Whole numbers stay int64, ratios are float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Number = Tensor | int | float


def least(a: Number, b: Number) -> Number:
    """The smaller one, elementwise."""
    return torch.minimum(*_tensors(a, b)) if isinstance(a, Tensor) or isinstance(b, Tensor) else min(a, b)


def greatest(a: Number, b: Number) -> Number:
    """The larger one, elementwise."""
    return torch.maximum(*_tensors(a, b)) if isinstance(a, Tensor) or isinstance(b, Tensor) else max(a, b)


def ratio(a: Number, b: Number) -> Number:
    """a / b in float64, so that every executor rounds the same shares to the same counts."""
    if isinstance(a, Tensor) and not a.is_floating_point():
        a = a.double()
    if isinstance(b, Tensor) and not b.is_floating_point():
        b = b.double()
    return a / b


def floor(a: Number) -> Tensor | int:
    return a.floor().to(torch.int64) if isinstance(a, Tensor) else math.floor(a)


def ceil(a: Number) -> Tensor | int:
    return a.ceil().to(torch.int64) if isinstance(a, Tensor) else math.ceil(a)


def round_even(a: Number) -> Tensor | int:
    """The nearest whole number; halves go to the even one."""
    return a.round().to(torch.int64) if isinstance(a, Tensor) else round(a)


def index(size: int, device: torch.device) -> Tensor:
    """[1, size]: the values of an index letter, as one row for the whole batch."""
    return torch.arange(size, device=device)[None]


def _tensors(a: Number, b: Number) -> tuple[Tensor, Tensor]:
    device = a.device if isinstance(a, Tensor) else b.device
    return torch.as_tensor(a, device=device), torch.as_tensor(b, device=device)
