"""Small recorded tensors, and params at which every shipped method acts on them."""

from __future__ import annotations

import torch
from torch import Tensor

LAYERS, HEADS, GROUP, CHANNELS = 3, 2, 2, 16

PARAMS: dict[str, dict[str, object]] = {
    "dense": {},
    "h2o": {"budget": 24, "recent": 8, "interval": 3},
    "snapkv": {"budget": 24, "window": 8},
    "pyramidkv": {"budget": 24, "window": 8, "beta": 4},
    "ada_snapkv": {"budget": 24, "window": 8},
    "tova": {"budget": 24},
    "streamingllm": {"budget": 20, "sinks": 3},
    "quest": {"budget": 16, "page_size": 4, "dense": 1, "min_pages": 2},
    "omnikv": {"budget": 10, "sinks": 2, "window": 4, "filters": frozenset({0, 1})},
    "kivi": {"block": 4, "residual": 8},
}
METHODS = tuple(PARAMS)


def tensors(tokens: int, seed: int) -> dict[str, Tensor]:
    """q, k, v [layer, token, head, channel], fp32."""
    made = torch.Generator().manual_seed(seed)
    heads = {"q": HEADS * GROUP, "k": HEADS, "v": HEADS}
    return {name: torch.randn(LAYERS, tokens, count, CHANNELS, generator=made) for name, count in heads.items()}


def arguments(method: str, **changed: object) -> dict[str, object]:
    """Keyword arguments of replay: params, and RoPE where a method rotates K itself."""
    params = {**PARAMS[method], **changed}
    rotates = method == "streamingllm" or params.get("positions") == "cache"
    rope = {"rotated": False, "rope": {"theta": 10000.0}} if rotates else {}
    return {"params": params, **rope}
