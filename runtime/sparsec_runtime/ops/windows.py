"""Values along an axis that are defined on a support: pooling over neighbours, softmax over it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def maxpool(x: Tensor, support: Tensor, width: int) -> Tensor:
    """Largest of the `width` entries around each entry of the support; others and what lies beyond the ends count as -inf. 0 outside it."""
    return _pooled(x, support, width, float("-inf"))


def avgpool(x: Tensor, support: Tensor, width: int) -> Tensor:
    """Mean of the `width` entries around each entry of the support; others count as 0, and so does what lies beyond: always divided by `width`."""
    return _pooled(x, support, width, 0.0)


def softmax(x: Tensor, support: Tensor, dim: int = -1) -> Tensor:
    """fp32 softmax over the support; 0 outside, and everywhere where the support is empty."""
    masked = x.float().masked_fill(~support, float("-inf"))
    nothing = masked.amax(dim, keepdim=True) == float("-inf")
    return torch.softmax(masked, dim).masked_fill_(nothing, 0.0)


def _pooled(x: Tensor, support: Tensor, width: int, border: float) -> Tensor:
    """Neighbours are the entries of the axis (resident rows, in rank order), members or not: what is outside the support is border."""
    assert width % 2 == 1, f"pooling width {width} is even: a window has no middle"
    x, support = torch.broadcast_tensors(x, support)
    line = torch.where(support, x, torch.full_like(x, border)).flatten(0, -2).unsqueeze(1)
    if border == 0.0:
        pooled = F.avg_pool1d(line, width, stride=1, padding=width // 2, count_include_pad=True)
    else:
        pooled = F.max_pool1d(line, width, stride=1, padding=width // 2)
    return torch.where(support, pooled.squeeze(1).reshape(x.shape), torch.zeros_like(x))
