"""What hooks that score a prompt cost beside the attention of its chunk: of one layer, over random K and V of a model's heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sparsec_runtime.attention.observe import QueryBlock
from sparsec_runtime.gpu.cuts import Cuts, reasons_against_cudnn
from sparsec_runtime.gpu.prefill import ChunkAttention, column_mass
from sparsec_runtime.zones import Pieces
from sparsec_runtime.models.loading import LoadedModel
from torch import Tensor

from sparsec.bench.ceiling import replayed_seconds, seconds


@dataclass(frozen=True, slots=True, eq=False)
class RandomChunk:
    """The newest `queries` of `tokens` rows. q [1, query, kv_head, group, channel]; keys, values [1, kv_head, token, channel]."""

    q: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    attention: ChunkAttention

    @classmethod
    def of(cls, model: LoadedModel, queries: int, tokens: int) -> RandomChunk:
        shape, device, dtype = model.shape, model.device, model.dtype
        q = torch.randn(1, queries, shape.kv_heads, shape.group, shape.head_dim, device=device, dtype=dtype)
        keys = torch.randn(1, shape.kv_heads, tokens, shape.head_dim, device=device, dtype=dtype)
        served = not reasons_against_cudnn(shape.head_dim, dtype, device)
        attention = ChunkAttention(shape.q_heads, shape.kv_heads, shape.head_dim, dtype, device, Cuts(queries, tokens) if served else None)
        return cls(q, keys, torch.randn_like(keys), float(shape.scale), attention)

    def attention_seconds(self) -> float:
        return seconds(lambda: self.attention(self.q, Pieces(self.keys[0]), Pieces(self.values[0]), self.scale))

    def mass_seconds(self) -> float:
        """Of the mean over g of all queries' probs, added up per row."""
        _, lse = self.attention(self.q, Pieces(self.keys[0]), Pieces(self.values[0]), self.scale)
        return seconds(lambda: column_mass(self.q, self.keys, lse, self.scale, "mean"))

    def window_seconds(self, window: int) -> float:
        """Of the mean over g of the newest queries' probs, added up per row: of the kernels, whose launches a prompt's attention hides."""
        tokens, heads = self.keys.shape[2], self.keys.shape[1]
        positions = torch.arange(tokens, device=self.q.device)
        q, query_pos, row_pos = self.q[:, -window:], positions[None, -window:], positions.expand(1, heads, tokens).contiguous()
        valid = torch.ones((1, window), dtype=torch.bool, device=self.q.device)
        return replayed_seconds(lambda: QueryBlock(q, query_pos, valid, self.keys, scale=self.scale, row_pos=row_pos).mass("sum").mean(2))
