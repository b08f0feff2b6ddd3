"""Attention of one query per request.

The query heads of a KV head are its queries, so keys and values are never copied per query head. A mask is always given, even where it
hides nothing: a method that reads everything does the same arithmetic as full attention, bit for bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend_decode(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, lengths: list[int], scale: float) -> Tensor:
    """q [row, kv_head, group, channel]; keys, values [row, kv_head, token, channel]; mask [row, kv_head|1, group|1, token] -> like q.

    lengths[row]: rows of its longest head. Ragged rows are attended one by one at their own length: the result does not depend on
    how far batch mates pad them, and padding costs nothing.
    """
    mask = mask.expand(-1, -1, q.shape[2], -1)
    if len(set(lengths)) == 1:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    out = torch.empty_like(q)
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        out[one] = F.scaled_dot_product_attention(
            q[one], keys[one, :, :length], values[one, :, :length], attn_mask=mask[one, ..., :length], scale=scale
        )
    return out
