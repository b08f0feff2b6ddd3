"""Where the chunks of a prompt end: by what they cost, counted in operations, so that the same prompt is always cut at the same tokens.

The size of a chunk depends on the tokens before it, the model and the engine's options: never on other requests, on what a step has room for, or on time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from sparsec_runtime.models.shape import ModelShape
from sparsec_runtime.options import EngineOptions

LEAST_CHUNK = 512  # tokens, unless the options say less; shorter ones read the weights more often than they compute


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """chunk: tokens of a chunk, at most. limit: operations of a chunk, and of all chunks of a step in which rows decode. fixed: every chunk is whole.

    per_token: operations of the projections for one token; per_pair: of attention for one query and one row that it sees. What hooks compute is not counted.
    """

    chunk: int
    limit: float = inf
    per_token: int = 0
    per_pair: int = 0
    fixed: bool = True

    def size_at(self, start: int) -> int:
        """Tokens of the chunk that begins after `start` others: `chunk`, or half of it as often as brings it within the limit."""
        size = self.chunk
        while not self.fixed and size % 2 == 0 and size // 2 >= LEAST_CHUNK and self.work(start, start + size) > self.limit:
            size //= 2
        return size

    def end_of(self, start: int, prompt: int) -> int:
        """One behind the last token of the chunk that begins at `start` in a prompt of so many tokens."""
        return min(prompt, start + self.size_at(start))

    def work(self, start: int, end: int) -> int:
        """Operations of the chunk [start, end) over all rows before it."""
        tokens = end - start
        return tokens * self.per_token + self.per_pair * (tokens * start + tokens * (tokens + 1) // 2)

    def shorter(self, tokens: int) -> tuple[int, ...]:
        """Sizes below `chunk` that chunks of a prompt of so many tokens are given, descending; the last one of a prompt may have any."""
        found, start = set(), 0
        while start < tokens:
            found.add(size := self.size_at(start))
            start += size
        return tuple(sorted(found - {self.chunk}, reverse=True))


def chunk_sizes(facts: Mapping[str, object], shape: ModelShape, options: EngineOptions) -> ChunkSizes:
    """facts: those of the compiled method. Chunks are whole where their size is part of its results, and where nothing can decode beside them."""
    chunks = facts.get("chunks", {"value": "no"})
    assert isinstance(chunks, Mapping), "facts of a method are what the compiler wrote"
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return ChunkSizes(
        options.chunk, options.chunk_tflop * 1e12, per_token=2 * (shape.parameters - embeddings), per_pair=4 * shape.layers * shape.q_heads * shape.head_dim,
        fixed=chunks["value"] == "no" or options.max_running == 1,
    )  # fmt: skip
