"""Plain causal attention over every token: what a method must equal when no bound of it bites."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsec.verify.traces import ROPE_THETA, Inputs
from sparsec_runtime.rope import Rope


def dense_attention(inputs: Inputs) -> Tensor:
    """[layer, token, q_head, channel]"""
    layers, tokens, kv_heads, channels = inputs.k.shape
    rope = Rope.plain(ROPE_THETA, channels)
    cos, sin = rope.cos_sin(torch.arange(tokens).expand(layers, tokens))
    group = inputs.q.shape[2] // kv_heads
    q, k = rope.rotate(inputs.q, cos, sin), rope.rotate(inputs.k, cos, sin).repeat_interleave(group, 2)
    logits = torch.einsum("lihc,lthc->lhit", q, k) * channels**-0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    probs = logits.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("lhit,lthc->lihc", probs, inputs.v.repeat_interleave(group, 2))
