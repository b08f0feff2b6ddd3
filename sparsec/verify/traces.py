"""Generated Q, K and V of one sequence of a tiny model: what every property is tried on. The same seed gives the same numbers.

q [layer, token, q_head, channel], k and v [layer, token, kv_head, channel], before RoPE, float32. Knows no methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsec_runtime.models.shape import ModelShape

ROPE_THETA = 10_000.0
CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the tiny model."""

    layers: int
    kv_heads: int
    group: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.layers} layers x {self.kv_heads} kv_heads x {self.group} queries x {self.head_dim} channels"

    @property
    def q_heads(self) -> int:
        return self.kv_heads * self.group

    def model(self) -> ModelShape:
        """The same sizes as a model that compiler and runtime accept; what no trace needs is as small as can be."""
        hidden = self.q_heads * self.head_dim
        return ModelShape(
            name="trace", family="llama", layers=self.layers, q_heads=self.q_heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            hidden=hidden, intermediate=hidden, vocab=2, max_positions=CONTEXT, rope_theta=ROPE_THETA, rms_eps=1e-6, tied=True,
            qk_norm=False, attention_bias=False, dtype="float32", scale=self.head_dim**-0.5,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """One sequence: a prompt of `prompt_len` tokens, and the decode tokens that follow it."""

    kind: str
    prompt_len: int
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def tokens(self) -> int:
        return self.k.shape[1]

    @property
    def new(self) -> int:
        """Decode steps."""
        return self.tokens - self.prompt_len

    def first(self, tokens: int) -> Inputs:
        """The sequence cut after so many tokens."""
        if tokens >= self.tokens:
            return self
        return replace(self, q=self.q[:, :tokens], k=self.k[:, :tokens], v=self.v[:, :tokens])

    def perturbed(self, seed: int, size: float = 2e-6) -> Inputs:
        """The same sequence with relative noise of about the rounding of float32."""
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (x * (1 + size * torch.randn(x.shape, generator=generator)) for x in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v)


def _gaussian(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return q, k


def _heavy_hitters(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """All queries share a direction, and a few keys point there: the same tokens draw most of the attention."""
    layers, tokens, kv_heads, channels = k.shape
    direction = torch.randn(layers, 1, kv_heads, channels, generator=generator)
    heavy = torch.rand(layers, tokens, kv_heads, 1, generator=generator) < 0.1
    group = q.shape[2] // kv_heads
    return q + direction.repeat_interleave(group, dim=2), k + 1.5 * heavy * direction


def _ties(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Few distinct values, and repeated keys."""
    coarse_q, coarse_k = q.round().clamp(-1, 1), k.round().clamp(-1, 1)
    repeated = torch.randint(0, k.shape[1], (k.shape[1],), generator=generator) // 3
    return coarse_q, coarse_k[:, repeated]


def _outliers(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One channel of the keys is ten times larger than the others, as in trained models."""
    channel = int(torch.randint(0, k.shape[-1], (1,), generator=generator))
    scale = torch.ones(k.shape[-1])
    scale[channel] = 10.0
    return q / scale, k * scale


KINDS: dict[str, Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]] = {
    "gaussian": _gaussian,
    "heavy hitters": _heavy_hitters,
    "outlier channels": _outliers,
    "ties": _ties,
}


def make_inputs(shape: Shape, kind: str, prompt_len: int, new: int, seed: int) -> Inputs:
    """A sequence of `prompt_len` + `new` tokens of the named distribution."""
    assert prompt_len >= 1, "a prompt has a token"
    generator = torch.Generator().manual_seed(seed)
    tokens = prompt_len + new
    q = torch.randn(shape.layers, tokens, shape.q_heads, shape.head_dim, generator=generator)
    k = torch.randn(shape.layers, tokens, shape.kv_heads, shape.head_dim, generator=generator)
    v = torch.randn(shape.layers, tokens, shape.kv_heads, shape.head_dim, generator=generator)
    q, k = KINDS[kind](q, k, generator)
    return Inputs(kind, prompt_len, q, k, v)
