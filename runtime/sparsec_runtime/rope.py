"""Rotary position embedding: angles of any positions, and the rotation of q or k by them. Knows no pages, views or hooks.

Half-split pairs channel c with c + dim/2 (Llama, Qwen, Mistral); interleaved pairs 2c with 2c + 1. The half-split arithmetic is transformers'
own, in the same order and dtypes, so that a dense run gives bit-equal queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from .models.errors import ModelError

Style = Literal["half-split", "interleaved"]

# Frequencies that never change while a model runs. The others depend on the longest length so far: a key cached earlier would be stale.
STATIC_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """`inv_freq` [channel / 2] radians per position, fp32; `scaling` multiplies cos and sin (yarn's attention factor)."""

    inv_freq: Tensor
    scaling: float = 1.0
    style: Style = "half-split"

    @classmethod
    def plain(cls, theta: float, dim: int, style: Style = "half-split", device: torch.device | str = "cpu") -> Rope:
        """The original embedding over `dim` channels: inv_freq = theta^(-2i / dim)."""
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        return cls((1.0 / (theta**exponents)).to(device), 1.0, style)

    @classmethod
    def of_module(cls, rotary: nn.Module) -> Rope:
        """The embedding that a transformers model's `rotary_emb` computes."""
        if rotary.rope_type not in STATIC_TYPES:
            raise ModelError(
                f"RoPE scaling '{rotary.rope_type}' is not supported: its frequencies depend on the length so far, "
                "so keys that are already stored would be wrong",
                f"supported: {', '.join(STATIC_TYPES)}",
            )
        return cls(rotary.inv_freq.detach().float(), float(rotary.attention_scaling))

    @property
    def dim(self) -> int:
        """Channels that rotate; the channels above pass through."""
        return 2 * self.inv_freq.shape[0]

    def to(self, device: torch.device | str) -> Rope:
        return replace(self, inv_freq=self.inv_freq.to(device))

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [*positions, channel], fp32, for integer positions of any shape."""
        angles = positions[..., None].float() * self.inv_freq
        if self.style == "half-split":
            angles = torch.cat((angles, angles), dim=-1)
        else:
            angles = angles.repeat_interleave(2, dim=-1)
        return angles.cos() * self.scaling, angles.sin() * self.scaling

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [..., head, channel] rotated by cos and sin [..., channel] (or of x's rank, where heads differ), in x's dtype."""
        cos, sin = self._aligned(x, cos), self._aligned(x, sin)
        turning = x[..., : self.dim]
        rotated = (turning * cos) + (self._quarter_turn(turning) * sin)
        return rotated if x.shape[-1] == self.dim else torch.cat((rotated, x[..., self.dim :]), dim=-1)

    def _aligned(self, x: Tensor, angle: Tensor) -> Tensor:
        assert angle.shape[-1] == self.dim, f"angles of {angle.shape[-1]} channels, but {self.dim} rotate"
        return (angle if angle.ndim == x.ndim else angle.unsqueeze(-2)).to(x.dtype)

    def _quarter_turn(self, x: Tensor) -> Tensor:
        """x with each pair (a, b) replaced by (-b, a)."""
        if self.style == "half-split":
            low, high = x.chunk(2, dim=-1)
            return torch.cat((-high, low), dim=-1)
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
