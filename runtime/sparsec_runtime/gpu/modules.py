"""Modules of a decoder layer that a GPU runs as one kernel each where transformers launches many: RMSNorm, and the gated MLP's activation.

They stand where the originals stood and share their weights. Results are rounded where transformers rounds them. QK norms stay as they are: their rows are short.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from .blocks import pow2
from .kernels.block import add_rms_norm, silu_mul
from .weights import fuse

BLOCK = 1024  # channels of a program of the activation


class FusedNorm(nn.Module):
    """RMSNorm over the last axis, one launch."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.weight, self.eps = original.weight, float(original.variance_epsilon)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., channel] -> the same shape."""
        width = hidden.shape[-1]
        x = hidden.reshape(-1, width)
        out = torch.empty_like(x)
        add_rms_norm[(x.shape[0],)](x, x, self.weight, out, width, self.eps, x.shape[0], SPLITS=0, BLOCK=pow2(width), num_warps=8)
        return out.view(hidden.shape)


class FusedMlp(nn.Module):
    """down(silu(gate(x)) * up(x)): one product for gate and up, one launch for the activation."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = original.gate_proj, original.up_proj, original.down_proj
        self.gate_up = fuse([self.gate_proj.weight, self.up_proj.weight])

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., channel] -> the same shape."""
        both = F.linear(hidden.reshape(-1, hidden.shape[-1]), self.gate_up)
        rows, width = both.shape[0], both.shape[1] // 2
        active = torch.empty((rows, width), dtype=both.dtype, device=both.device)
        silu_mul[(rows, -(-width // BLOCK))](both, active, width, BLOCK=BLOCK)
        return self.down_proj(active).view(hidden.shape)


def fuse_modules(module: PreTrainedModel) -> None:
    """Swaps the modules in, by what they compute; a model that computes something else keeps its own."""
    decoder = module.model
    for layer in decoder.layers:
        layer.input_layernorm, layer.post_attention_layernorm = FusedNorm(layer.input_layernorm), FusedNorm(layer.post_attention_layernorm)
        if module.config.hidden_act == "silu" and layer.mlp.gate_proj.bias is None:
            layer.mlp = FusedMlp(layer.mlp)
    decoder.norm = FusedNorm(decoder.norm)
