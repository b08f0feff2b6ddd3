"""A choice of single tokens that all heads and several layers share: lists of row indexes from one layer's logits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .blocks import pow2
from .kernels.draw import slots_of_tokens, sum_candidates, worth_of_tokens
from .ranking import NO_OPTIONS, rank_best

PART, TILE = 1024, 256  # tokens of one program, and of one step of it


def list_tokens(
    logits: Tensor, held: Tensor, first: Tensor, newest: Tensor, count: Tensor, listed: Tensor, *, shares: bool, options: Mapping[str, bool] = NO_OPTIONS
) -> None:
    """listed [row, n], int32: the first count[row] become the indexes of a row's first and newest tokens and of its best others, ascending.

    logits [row, query head, token] fp32, base 2, of which held[row] tokens count. A token is worth the best over heads of its softmax over the tokens
    that are neither first nor newest (shares) or of its logit; ties go to the older token.
    """
    rows, heads, tokens = logits.shape
    parts = -(-tokens // PART)
    top = torch.empty((rows, parts, heads), dtype=torch.float32, device=logits.device)
    total = torch.empty_like(top)
    common = {"HQ": heads, "HP": pow2(heads), "TILE": TILE, "num_warps": 8, **options}
    if shares:
        sum_candidates[(parts, rows)](logits, held, first, newest, top, total, logits.stride(1), PART=PART, **common)
    worth = torch.empty((rows, 1, tokens), dtype=torch.float32, device=logits.device)
    worth_of_tokens[(-(-tokens // TILE), rows)](
        logits, top, total, held, first, newest, worth, logits.stride(1), tokens, parts, SHARES=shares, PARTS=pow2(parts), **common
    )
    rank_best(worth, held, count, listed[:, None], ends=(first, newest), options=options)


def place_tokens(listed: Tensor, count: Tensor, table: Tensor, page_size: int, *, options: Mapping[str, bool] = NO_OPTIONS) -> None:
    """listed [row, n], indexes of tokens, becomes their slots in the pools: what every layer of one table reads without asking the table again.

    table [row, 1, page of the row]; a slot is page * page_size + place in the page.
    """
    rows, width = listed.shape
    slots_of_tokens[(-(-width // TILE), rows)](listed, count, table, listed.stride(0), table.stride(0), PAGE=page_size, TILE=TILE, num_warps=1, **options)
