"""The rows of one layer: which tokens each head holds, in which zone their K and V lie, and the positional sets over them.

All arrays are [kv_head, token] over every token so far. Sets come out as `Value`s; they depend on `h` only where heads hold different rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsec.reference.values import Value


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    resident: Tensor  # bool
    zone_k: Tensor  # int64, index of the zone
    zone_v: Tensor

    @classmethod
    def empty(cls, heads: int) -> Rows:
        none = torch.zeros(heads, 0, dtype=torch.int64)
        return cls(none.bool(), none, none)

    def appended(self, count: int) -> Rows:
        """New rows go to the first zone."""
        new = torch.zeros(self.resident.shape[0], count, dtype=torch.int64)
        return Rows(
            torch.cat((self.resident, torch.ones_like(new, dtype=torch.bool)), 1),
            torch.cat((self.zone_k, new), 1),
            torch.cat((self.zone_v, new), 1),
        )

    def without(self, dropped: Tensor) -> Rows:
        return replace(self, resident=self.resident & ~dropped)

    def moved(self, rows: Tensor, part: str | None, zone: int) -> Rows:
        zone_k = torch.where(rows, zone, self.zone_k) if part in (None, "K") else self.zone_k
        zone_v = torch.where(rows, zone, self.zone_v) if part in (None, "V") else self.zone_v
        return replace(self, zone_k=zone_k, zone_v=zone_v)

    @property
    def tokens(self) -> int:
        return self.resident.shape[1]

    def in_zone(self, zone: int, part: str | None) -> Tensor:
        """Resident rows whose K (V, or both for None) lie in the zone."""
        inside = self.resident
        if part in (None, "K"):
            inside = inside & (self.zone_k == zone)
        if part in (None, "V"):
            inside = inside & (self.zone_v == zone)
        return inside

    def rank(self) -> Tensor:
        """How many resident rows precede each token."""
        held = self.resident.long()
        return held.cumsum(1) - held

    def visible(self, queries: Tensor) -> Tensor:
        """[query, kv_head, token]: resident rows at or before each query."""
        return self.resident & (torch.arange(self.tokens) <= queries[:, None])[:, None, :]


def row_set(mask: Tensor, letters: tuple[str, ...] = ("h", "t")) -> Value:
    """A set of tokens; the `h` axis is dropped where all heads agree."""
    axis = letters.index("h")
    if bool((mask == mask.narrow(axis, 0, 1)).all()):
        return Value(mask.select(axis, 0), letters[:axis] + letters[axis + 1 :], base=("t",))
    return Value(mask, letters, base=("t",))


def newest(mask: Tensor, count: Tensor) -> Tensor:
    """The last `count` true entries along the last axis."""
    ahead = mask.long().flip(-1).cumsum(-1).flip(-1)
    return mask & (ahead <= count)


def oldest(mask: Tensor, count: Tensor) -> Tensor:
    """The first `count` true entries along the last axis."""
    return mask & (mask.long().cumsum(-1) <= count)


def every(mask: Tensor, stride: Tensor) -> Tensor:
    """Every stride-th true entry, from the first."""
    return mask & ((mask.long().cumsum(-1) - 1) % stride == 0)
