"""A tiny shape, random tensors and a driver for hand-written managers: one step of the engine without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sparsec_runtime.cache import CacheManager, StepBatch
from sparsec_runtime.rope import Rope
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    layers: int = 3
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    max_positions: int = 512

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


torch.set_num_threads(1)
SHAPE = Shape()
ROPE = Rope.plain(10000.0, SHAPE.head_dim)


def manager(kind: type[CacheManager], tokens: int = 512, dtype: torch.dtype = torch.float32, chunk: int = 16) -> CacheManager:
    return kind(SHAPE, ROPE, dtype, "cpu", pool_tokens=tokens, max_requests=16, chunk=chunk)


@dataclass
class Stream:
    """The q, k, v of one sequence [layer, token, head, channel], before RoPE, and how far it is fed."""

    handle: int
    prompt: int
    q: Tensor = field(repr=False)
    k: Tensor = field(repr=False)
    v: Tensor = field(repr=False)
    done: int = 0

    @classmethod
    def random(cls, cache: CacheManager, prompt: int, seed: int, params: dict | None = None, length: int = 400) -> Stream:
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (
            torch.randn(SHAPE.layers, length, heads, SHAPE.head_dim, generator=generator)
            for heads in (SHAPE.q_heads, SHAPE.kv_heads, SHAPE.kv_heads)
        )
        return cls(cache.open(f"seed {seed}", params or {}), prompt, q, k, v)

    def take(self, layer: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        span = slice(self.done, self.done + tokens)
        return self.q[layer, span], self.k[layer, span], self.v[layer, span]


def forward(cache: CacheManager, streams: Sequence[Stream], tokens: int = 1, commit: bool = True) -> Tensor:
    """One step of all streams: [row, layer, token, q_head, channel]."""
    phase = "prefill" if streams[0].done < streams[0].prompt else "decode"
    ends = streams[0].done + tokens >= streams[0].prompt
    steps = tuple(max(0, stream.done - stream.prompt) for stream in streams)
    cache.begin_step(StepBatch(tuple(stream.handle for stream in streams), tokens, phase, ends, steps))
    outs = []
    for layer in range(SHAPE.layers):
        q, k, v = (torch.stack(each) for each in zip(*(stream.take(layer, tokens) for stream in streams)))
        outs.append(cache.attend(layer, q, k, v, torch.zeros(len(streams), tokens, 4)))
    cache.finish()
    if commit:
        cache.commit_step()
        for stream in streams:
            stream.done += tokens
    return torch.stack(outs, dim=1)


def prefill(cache: CacheManager, stream: Stream, chunk: int = 16) -> Tensor:
    """The whole prompt in chunks: [layer, token, q_head, channel]."""
    outs = []
    while stream.done < stream.prompt:
        outs.append(forward(cache, [stream], min(chunk, stream.prompt - stream.done))[0])
    return torch.cat(outs, dim=1)


def run(cache: CacheManager, stream: Stream, new: int, chunk: int = 16) -> Tensor:
    """Prompt and `new` decode steps alone: [layer, token, q_head, channel]."""
    return torch.cat([prefill(cache, stream, chunk), *(forward(cache, [stream])[0] for _ in range(new))], dim=1)


def stored(cache: CacheManager, handle: int, zone: str, part: str) -> list[list[Tensor]]:
    """What the pools hold of one request: [layer][kv_head] -> rows [row, channel] of one zone part."""
    sequence = cache._sequences[handle]
    store = cache.storage.stores[zone, part]
    at = cache.storage.addresses([sequence])[store.stream.name]
    counts = sequence.zone_rows[zone, part]
    layers = range(SHAPE.layers)
    read = [store.read(at, layer, max(1, int(counts[layer].max())))[0] for layer in layers]
    return [[read[layer][head, : counts[layer, head]] for head in range(SHAPE.kv_heads)] for layer in layers]


def row_data(cache: CacheManager, handle: int, array: object) -> list[list[list[float]]]:
    """A row array of one request: [layer][kv_head] -> values in position order."""
    sequence = cache._sequences[handle]
    at = cache.storage.addresses([sequence])[cache.storage.row_stream.name]
    rows: np.ndarray = sequence.rows
    return [
        [array.gather(layer, at.units(layer))[0, head, : rows[layer, head]].tolist() for head in range(SHAPE.kv_heads)]
        for layer in range(SHAPE.layers)
    ]
