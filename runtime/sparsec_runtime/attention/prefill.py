"""Attention of a prefill chunk: blocks of queries, each over the rows up to its last query. No [query, token] tensor of the whole chunk exists."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

QUERY_BLOCK = 128  # queries per call: the causal skip costs at most a block, the mask stays small

MaskOf = Callable[[int, int, int], Tensor]


def attend_prefill(q: Tensor, keys: Tensor, values: Tensor, mask_of: MaskOf, scale: float) -> Tensor:
    """q [row, query, kv_head, group, channel]; keys, values [row, kv_head, token, channel] -> like q.

    mask_of(first, last, width): which of the first `width` entries queries [first, last) see, [row, query, kv_head|1, group|1, token].
    The chunk's own rows are the newest of the token axis.
    """
    rows, queries, heads, group, channels = q.shape
    tokens = keys.shape[2]
    out = torch.empty_like(q)
    for first in range(0, queries, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, queries)
        width = tokens - queries + last
        block = q[:, first:last].permute(0, 2, 1, 3, 4).flatten(2, 3)
        mask = mask_of(first, last, width)
        mask = mask.permute(0, 2, 1, 3, 4).expand(-1, -1, -1, group, -1).flatten(2, 3)
        found = F.scaled_dot_product_attention(block, keys[:, :, :width], values[:, :, :width], attn_mask=mask, scale=scale)
        out[:, first:last] = found.reshape(rows, heads, last - first, group, channels).permute(0, 2, 1, 3, 4)
    return out
