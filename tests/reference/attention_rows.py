"""Queries and keys that give wanted attention: keys are one-hot by token, so a query's coordinates are its scaled logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsec.trace import Trace


def from_logits(rows: dict[int, list[list[float]]], tokens: int, kv_heads: int = 1, layers: int = 1) -> dict[str, Tensor]:
    """q, k, v for `replay`: rows[token][q_head] are the scaled logits of that token's query; queries not given are zero."""
    heads = len(next(iter(rows.values())))
    q = torch.zeros(layers, tokens, heads, tokens)
    for token, by_head in rows.items():
        for head, logits in enumerate(by_head):
            q[:, token, head, : len(logits)] = torch.tensor(logits) * math.sqrt(tokens)
    k = torch.eye(tokens)[None, :, None, :].expand(layers, tokens, kv_heads, tokens).clone()
    v = torch.zeros_like(k)
    v[..., 0], v[..., 1] = torch.arange(tokens)[:, None], 10 - torch.arange(tokens)[:, None]
    return {"q": q, "k": k, "v": v}


def from_probs(rows: dict[int, list[dict[int, float]]], tokens: int, kv_heads: int = 1) -> dict[str, Tensor]:
    """The same from probabilities by position; positions left out get (almost) none."""
    logits = {
        token: [[math.log(probs.get(t, 1e-30)) for t in range(tokens)] for probs in by_head] for token, by_head in rows.items()
    }
    return from_logits(logits, tokens, kv_heads)


def kept(trace: Trace, step: int, layer: int = 0, head: int = 0) -> list[int]:
    return trace.kept[step][layer][head].tolist()


def attended(trace: Trace, step: int, layer: int = 0, head: int = 0) -> list[int]:
    return trace.attended[step][layer][head].tolist()


def values(trace: Trace, name: str, step: int, layer: int = 0, head: int = 0) -> dict[int, float]:
    """Position -> number of a recorded value."""
    recorded = trace.recorded[name][step][layer]
    assert recorded is not None, f"{name} has no value after step {step}"
    return {position: float(value) for position, value in recorded.at(head).items()}
