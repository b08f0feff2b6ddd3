"""Rankings on plain tensors [..., candidate]: ties go to the lower index, NaN ranks last. Knows no letters."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsec.dsl.names import SHARE_DIGITS


def ranks(score: Tensor, candidates: Tensor, largest: bool = True) -> Tensor:
    """Rank of each entry, 0 the best; entries that are no candidates come after all others."""
    missing = score.isnan() if score.is_floating_point() else torch.zeros_like(candidates)
    filled = torch.where(missing, torch.zeros_like(score), score)
    by_score = filled.sort(dim=-1, descending=largest, stable=True).indices
    kind = torch.where(candidates, missing.int(), 2)
    by_kind = kind.gather(-1, by_score).sort(dim=-1, stable=True).indices
    order = by_score.gather(-1, by_kind)
    return torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1]).expand_as(order))


def best(score: Tensor, candidates: Tensor, count: Tensor, largest: bool = True) -> Tensor:
    """Mask of the `count` [...] best candidates (all of them where there are fewer)."""
    return candidates & (ranks(score, candidates, largest) < count.unsqueeze(-1))


def nucleus(mass: Tensor, candidates: Tensor, cover: Tensor) -> Tensor:
    """Mask of the fewest best candidates whose mass reaches `cover` [...]."""
    place = ranks(mass, candidates)
    order = place.argsort(dim=-1)
    sorted_mass = torch.where(candidates, mass, 0).double().gather(-1, order)
    before = sorted_mass.cumsum(-1) - sorted_mass
    return candidates & (before < cover.unsqueeze(-1)).gather(-1, place)


def apportion(raw: Tensor, total: Tensor) -> Tensor:
    """Shares [..., n] rounded by largest remainder so that they sum to `total` [...]; remainders equal to SHARE_DIGITS tie."""
    raw = raw.double()
    floors = (raw + 10.0**-SHARE_DIGITS).floor()
    missing = total.long() - floors.sum(-1).long()
    n = raw.shape[-1]
    remainder = (raw - floors).round(decimals=SHARE_DIGITS)
    place = ranks(remainder, torch.ones_like(raw, dtype=torch.bool))
    extra = torch.div(missing, n, rounding_mode="floor").unsqueeze(-1) + (place < (missing % n).unsqueeze(-1))
    return floors.long() + extra
