"""The weights of a decoder layer as a graph reads them: q, k, v in one matrix, gate and up in one.

The model's own projections become views of the fused matrices: nothing is held twice, and transformers' modules run on as before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..models.loading import LoadedModel


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """qkv [(q_heads + 2 kv_heads) * channel, hidden], gate_up [2 * intermediate, hidden]; biases None where the model has none."""

    before_attention: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    before_mlp: Tensor
    gate_up: Tensor
    down: Tensor


def fused_weights(model: LoadedModel) -> list[LayerWeights]:
    """Fuses each layer's projections in place; a second call finds them fused and changes nothing."""
    return [_fused_layer(layer) for layer in model.module.model.layers]


def _fused_layer(layer: nn.Module) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return LayerWeights(
        before_attention=layer.input_layernorm.weight,
        qkv=fuse([projection.weight for projection in projections]),
        qkv_bias=None if attention.q_proj.bias is None else fuse([projection.bias for projection in projections]),
        q_norm=None if attention.q_norm is None else attention.q_norm.weight,
        k_norm=None if attention.k_norm is None else attention.k_norm.weight,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        before_mlp=layer.post_attention_layernorm.weight,
        gate_up=fuse([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
    )


@torch.no_grad()
def fuse(parts: list[nn.Parameter]) -> Tensor:
    """One tensor of all parts, stacked along their first axis; each part is made a view of it."""
    rows = [part.shape[0] for part in parts]
    first = parts[0]
    adjacent = all(
        part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and part.data_ptr() == first.data_ptr() + sum(rows[:n]) * first.stride(0) * first.element_size()
        for n, part in enumerate(parts)
    )
    if adjacent:
        return torch.as_strided(first.data, (sum(rows), *first.shape[1:]), first.stride())
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, whole.split(rows)):
        part.data = view
    return whole
