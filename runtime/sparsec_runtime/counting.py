"""Host arithmetic of counts that generated managers use in rows_after. Plain Python numbers."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor

from .ops.shares import RESOLUTION


def apportion(raw: Iterable[float], total: int) -> list[int]:
    """Whole shares that add up to `total`, by largest remainder: the same numbers as ops.apportion."""
    shares = list(raw)
    whole = [floor(share + 10.0**-RESOLUTION) for share in shares]
    left = total - sum(whole)
    order = sorted(range(len(shares)), key=lambda member: (-round(shares[member] - whole[member], RESOLUTION), member))
    for rank, member in enumerate(order):
        whole[member] += left // len(order) + (rank < left % len(order))
    return whole
