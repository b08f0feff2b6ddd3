"""Exact arithmetic of a draw: weights are whole numbers, so sums do not depend on their order, and a CPU, a GPU and a captured graph draw the same id.

Each step is one IEEE fp32 operation, or integer; gpu/kernels/sample.py does the same ones. A weight below 2^-40 of the largest is 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .sampler import SamplingParams

WEIGHT_BITS = 40  # the largest weight of a row is 2^40: sums over 2^22 ids stay below 2^62
LEAST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**127
# 2^-f for f in [0, 1) from the constant term up, within 1.1e-7 in fp32; fitted with the constant term held at 1, so that the largest logit weighs 2^40.
EXP2 = (
    1.0, -0.6931470632553101, 0.2402247041463852, -0.05549229681491852, 0.009582214057445526, -0.0012774727074429393, 0.00010993593605235219,
)  # fmt: skip


def scale_of(params: SamplingParams) -> float:
    """log2(e) / temperature, at most what fp32 holds; 1 for a greedy row, which draws nothing."""
    return 1.0 if params.greedy else min(max(math.log2(math.e) / params.temperature, LEAST_SCALE), LARGEST_SCALE)


def least_weight(params: SamplingParams) -> int:
    """The weight that min_p asks for."""
    return math.ceil(params.min_p * 2**WEIGHT_BITS)


def fixed_weights(logits: Tensor, scale: Tensor) -> Tensor:
    """2^40 * e^((logit - largest) / temperature) [row, vocab] int64, rounded down; logits [row, vocab] fp32, scale [row, 1] fp32 from `scale_of`."""
    largest = logits.amax(dim=-1, keepdim=True)
    below = torch.where(logits == largest, 0.0, largest - logits)
    below = (below * scale).clamp(max=63.0)
    whole = below.to(torch.int32)
    part = below - whole.to(torch.float32)
    value = torch.full_like(part, EXP2[-1])
    for coefficient in EXP2[-2::-1]:
        value = value * part + coefficient
    mantissa = (value * 2.0**24).to(torch.int64)
    return (mantissa << (WEIGHT_BITS - 24)) >> whole.to(torch.int64)


def share_of(total: Tensor, share: Tensor) -> Tensor:
    """The least whole weight that is at least `share` fp64 of `total` int64."""
    return (share * total.double()).ceil().to(torch.int64)


def first_beyond(weights: Tensor, at: Tensor) -> Tensor:
    """The id [row] where the cumulative weight [row, vocab] in id order first exceeds the fraction `at` [row] fp64 of the total."""
    total = weights.cumsum(dim=-1)
    last = total[:, -1]
    target = torch.minimum((at * last.double()).to(torch.int64), last - 1)
    return torch.searchsorted(total, target[:, None], right=True)[:, 0]
