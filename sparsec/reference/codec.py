"""The integer group quantiser, as its authors write it: s = (max - min) / (2^bits - 1), s = 1 for a constant group, half to even.

All arithmetic is in the dtype of the input, scales included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """All four have the shape of the input; scale and minimum repeat within a group."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor
    values: Tensor


def quantise(x: Tensor, axis: int, block: int, bits: int, zero: bool = True) -> Coded:
    """Groups of `block` neighbours along `axis`. Without `zero`, symmetric: s = max|x| / (2^(bits-1) - 1) and no minimum."""
    assert x.shape[axis] % block == 0, f"{x.shape[axis]} entries do not divide into groups of {block}"
    groups = x.unflatten(axis, (x.shape[axis] // block, block))
    inside = (axis % x.ndim) + 1
    if zero:
        low, high = groups.amin(inside, keepdim=True), groups.amax(inside, keepdim=True)
        levels = 2**bits - 1
        bottom, top = 0, levels
    else:
        low, high = torch.zeros_like(groups.amax(inside, keepdim=True)), groups.abs().amax(inside, keepdim=True)
        levels = 2 ** (bits - 1) - 1
        bottom, top = -levels, levels
    scale = (high - low) / levels
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = ((groups - low) / scale).clamp(bottom, top).round()
    values = codes * scale + low

    def flat(part: Tensor) -> Tensor:
        return part.expand(groups.shape).flatten(inside - 1, inside)

    return Coded(flat(codes).to(torch.int32), flat(scale), flat(low), flat(values))
