"""What a prompt's newest queries give each row, in two launches of which neither writes a logit: log-sum-exp by runs of tokens, then the sums."""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import pow2, tile_of
from .kernels.window import lse_of_window, mass_of_window

LOG2E = 1.4426950408889634
RUN = 1024  # tokens of a program: by their number alone, so that sums are the same whatever lies beside them


def window_mass(q: Tensor, keys: Tensor, row_pos: Tensor, query_pos: Tensor, query_valid: Tensor, scale: float) -> Tensor:
    """The sum over the real queries of their softmax over the rows at positions up to their own: [row, kv_head, group, token] fp32.

    q [row, query, kv_head, group, channel]; keys [row, kv_head, token, channel]; row_pos [row, kv_head, token] int64, -1 where there is no row;
    query_pos [row, query] int64, query_valid [row, query] bool.
    """
    rows, queries, heads, group, channels = q.shape
    tokens, places = keys.shape[2], rows * heads
    keys = keys if keys.stride()[2:] == (channels, 1) else keys.contiguous()
    row_pos = row_pos if row_pos.stride(2) == 1 else row_pos.contiguous()
    exact = q.dtype == torch.float32
    pairs, tile, run, warps, stages = window_sizes(channels, exact, group)
    runs, blocks = -(-tokens // run), -(-queries // (pairs // pow2(group)))
    lse = torch.empty((places, blocks, runs, pairs), dtype=torch.float32, device=q.device)
    mass = torch.empty((places, blocks, group, tokens), dtype=torch.float32, device=q.device)
    given = (q.contiguous(), keys, row_pos, query_pos.contiguous(), query_valid.contiguous().view(torch.uint8))
    numbers = (tokens, queries, *keys.stride()[:2], *row_pos.stride()[:2], scale * LOG2E)
    sizes = {
        "H": heads, "G": group, "GP": pow2(group), "D": channels, "DP": tile_of(channels), "BM": pairs, "BN": tile, "RUN": run, "STAGES": stages,
        "EXACT": exact, "num_warps": warps,
    }  # fmt: skip
    lse_of_window[(runs, blocks, places)](*given, lse, *numbers, **sizes)
    mass_of_window[(runs, blocks, places)](*given, lse, mass, *numbers, **sizes)
    return (mass[:, 0] if blocks == 1 else mass.sum(1)).view(rows, heads, group, tokens)


def window_sizes(channels: int, exact: bool, group: int) -> tuple[int, int, int, int, int]:
    """Pairs of a block, tokens of a tile and of a run, warps, stages (benchmarks/compile_kernels.py)."""
    if exact:
        return max(32, pow2(group)), 32, RUN, 4, 1
    return max(128, pow2(group)), 64 if channels <= 128 else 32, RUN, 4, 3
