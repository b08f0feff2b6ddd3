"""Values along the token axis that are defined on a support: pooling over neighbours within it, softmax over it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def maxpool(x: Tensor, support: Tensor, width: int) -> Tensor:
    """Largest of the `width` support rows around each support row; beyond the support's ends is -inf. 0 outside the support."""
    return _pooled(x, support, width, float("-inf"))


def avgpool(x: Tensor, support: Tensor, width: int) -> Tensor:
    """Mean of the `width` support rows around each support row; beyond the support's ends counts as 0, so borders divide by `width` too."""
    return _pooled(x, support, width, 0.0)


def softmax(x: Tensor, support: Tensor, dim: int = -1) -> Tensor:
    """fp32 softmax over the support; 0 outside, and everywhere where the support is empty."""
    masked = x.float().masked_fill(~support, float("-inf"))
    nothing = masked.amax(dim, keepdim=True) == float("-inf")
    return torch.softmax(masked, dim).masked_fill_(nothing, 0.0)


def _pooled(x: Tensor, support: Tensor, width: int, border: float) -> Tensor:
    """Pools over the support rows moved together, in order, then puts the results back where they came from."""
    assert width % 2 == 1, f"pooling width {width} is even: a window has no middle"
    x, support = torch.broadcast_tensors(x, support)
    order = (~support).to(torch.uint8).sort(dim=-1, stable=True).indices
    inside = support.gather(-1, order)
    line = torch.where(inside, x.gather(-1, order), torch.full_like(x, border)).flatten(0, -2).unsqueeze(1)
    if border == 0.0:
        pooled = F.avg_pool1d(line, width, stride=1, padding=width // 2, count_include_pad=True)
    else:
        pooled = F.max_pool1d(line, width, stride=1, padding=width // 2)
    pooled = pooled.squeeze(1).reshape(x.shape)
    return torch.where(support, torch.zeros_like(x).scatter_(-1, order, pooled), torch.zeros_like(x))
