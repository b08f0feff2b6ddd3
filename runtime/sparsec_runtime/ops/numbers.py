"""Elementwise arithmetic over tensors and Python numbers alike, as the language rounds: `/` is exact to float64, rounding gives int64."""

from __future__ import annotations

import torch
from torch import Tensor

Number = int | float
Value = Tensor | Number


def least(first: Value, second: Value) -> Value:
    """The smaller of two values."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return torch.minimum(*_tensors(first, second))
    return min(first, second)


def greatest(first: Value, second: Value) -> Value:
    """The larger of two values."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return torch.maximum(*_tensors(first, second))
    return max(first, second)


def ratio(dividend: Value, divisor: Value) -> Value:
    """The quotient in float64."""
    if isinstance(dividend, Tensor):
        return dividend.to(torch.float64) / divisor
    return dividend / (divisor.to(torch.float64) if isinstance(divisor, Tensor) else divisor)


def pick(values: Tensor, index: Value, axis: int) -> Tensor:
    """The entry of one axis of values [row, ...] that index [row] tells, or a number for all rows."""
    if not isinstance(index, Tensor):
        return values.select(axis, int(index))
    at = index.reshape(-1, *(1,) * (values.ndim - 1)).expand(*values.shape[:axis], 1, *values.shape[axis + 1 :])
    return values.gather(axis, at).squeeze(axis)


def floor(x: Tensor) -> Tensor:
    """Rounded down, int64."""
    return x.floor().to(torch.int64) if x.is_floating_point() else x


def ceil(x: Tensor) -> Tensor:
    """Rounded up, int64."""
    return x.ceil().to(torch.int64) if x.is_floating_point() else x


def round_even(x: Tensor) -> Tensor:
    """Rounded to the nearest, halves to even, int64."""
    return x.round().to(torch.int64) if x.is_floating_point() else x


def index(n: int, device: torch.device) -> Tensor:
    """The values of an index letter [n]."""
    return torch.arange(n, device=device)


def _tensors(first: Value, second: Value) -> tuple[Tensor, Tensor]:
    device = first.device if isinstance(first, Tensor) else second.device
    a, b = torch.as_tensor(first, device=device), torch.as_tensor(second, device=device)
    # A Python number takes the tensor's kind, so that float32 scores stay float32.
    kind = torch.result_type(first, second)
    return a.to(kind), b.to(kind)
