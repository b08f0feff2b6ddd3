"""Reductions over the members of a mask, and the alignment of per-row quantities with larger tensors."""

from __future__ import annotations

import torch
from torch import Tensor

Dims = int | tuple[int, ...]


def align(quantity: Tensor | int | float, ndim: int) -> Tensor | int | float:
    """A quantity [row, ...leading axes] with trailing axes of size 1 up to `ndim` axes; numbers pass."""
    if not isinstance(quantity, Tensor):
        return quantity
    assert quantity.ndim <= ndim, f"a quantity of {quantity.ndim} axes cannot meet a tensor of {ndim}"
    return quantity.reshape(*quantity.shape, *(1,) * (ndim - quantity.ndim))


def masked_sum(x: Tensor, mask: Tensor | None, dims: Dims) -> Tensor:
    """Sum over members; of none: 0."""
    return (x if mask is None else torch.where(mask, x, torch.zeros_like(x))).sum(dims)


def masked_mean(x: Tensor, mask: Tensor | None, dims: Dims) -> Tensor:
    """Mean over members; of none: 0."""
    if mask is None:
        return x.mean(dims)
    x, mask = torch.broadcast_tensors(x, mask)
    return masked_sum(x, mask, dims) / count(mask, dims).clamp(min=1).to(x.dtype)


def masked_max(x: Tensor, mask: Tensor | None, dims: Dims) -> Tensor:
    """Largest member; of none: -inf (or the dtype's least number)."""
    return (x if mask is None else torch.where(mask, x, torch.full_like(x, _least(x.dtype)))).amax(dims)


def masked_min(x: Tensor, mask: Tensor | None, dims: Dims) -> Tensor:
    """Smallest member; of none: +inf (or the dtype's greatest number)."""
    return (x if mask is None else torch.where(mask, x, torch.full_like(x, _greatest(x.dtype)))).amin(dims)


def count(mask: Tensor, dims: Dims) -> Tensor:
    """Number of members, int64."""
    return mask.sum(dims)


def _least(dtype: torch.dtype) -> float | int:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _greatest(dtype: torch.dtype) -> float | int:
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max
