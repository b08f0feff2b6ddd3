"""Attention adapters: each replaces a decoder layer's `self_attn`, reuses its projections and norms, and hands q, k and v to an AttentionContext.

Adapters know no cache, RoPE or mask: the context owns them. The context of one forward pass travels as the layer's keyword `attention`, which
transformers' decoder layers hand through to `self_attn`; nothing is kept between passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from .errors import ModelError


class AttentionContext(Protocol):
    """What a forward pass attends through: writes k and v wherever they live, rotates, attends."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """Attention output [row, token, q_head, channel].

        q [row, token, q_head, channel] and k [row, token, kv_head, channel] are after QK norm and before RoPE; v [row, token, kv_head, channel];
        hidden [row, token, hidden] is the layer's normed input.
        """
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models builds its attention module."""

    attention: str  # class name in transformers
    qk_norm: bool


ADAPTED = {
    "llama": Family("LlamaAttention", qk_norm=False),
    "qwen2": Family("Qwen2Attention", qk_norm=False),
    "qwen3": Family("Qwen3Attention", qk_norm=True),
    "mistral": Family("MistralAttention", qk_norm=False),
}


class AttentionAdapter(nn.Module):
    """Stands where `self_attn` stood, with that module's own projections and norms."""

    def __init__(self, original: nn.Module, layer: int, qk_norm: bool) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim: int = original.head_dim
        self.scale = float(original.scaling)
        self.q_proj, self.k_proj = original.q_proj, original.k_proj
        self.v_proj, self.o_proj = original.v_proj, original.o_proj
        self.q_norm = original.q_norm if qk_norm else None
        self.k_norm = original.k_norm if qk_norm else None

    def forward(self, hidden_states: Tensor, attention: AttentionContext, **_unused: object) -> tuple[Tensor, None]:
        """hidden_states [row, token, hidden] -> [row, token, hidden]; masks and caches that the layer offers are None and not looked at."""
        q, k, v = self.project(hidden_states)
        out = attention.attend(self.layer, q, k, v, hidden_states)
        return self.o_proj(out.flatten(-2)), None

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [row, token, head, channel] before RoPE."""
        heads = (*hidden.shape[:-1], -1, self.head_dim)
        q, k, v = (proj(hidden).view(heads) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v


def adapt(layers: nn.ModuleList, family: str) -> list[AttentionAdapter]:
    """Replaces every layer's `self_attn`; returns the adapters in layer order."""
    expected = ADAPTED[family]
    adapters = []
    for index, layer in enumerate(layers):
        found = type(layer.self_attn).__name__
        if found != expected.attention:
            raise ModelError(f"layer {index} attends with {found}; the adapter of '{family}' knows {expected.attention}")
        layer.self_attn = AttentionAdapter(layer.self_attn, index, expected.qk_norm)
        adapters.append(layer.self_attn)
    return adapters
