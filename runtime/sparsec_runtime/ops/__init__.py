"""Deterministic primitives that generated code is written with: rankings, positional sets, pooling, masked reductions.

Axis conventions are those of docs/internals.md: axis 0 is the batch row; sets are bool tensors; the token axis is last.
"""

from .numbers import ceil, floor, greatest, index, least, pick, ratio, round_even
from .pages import open_page, page_any, page_max, page_mean, page_min, page_sum, pages_to_tokens, split_pages
from .ranking import Ranking, bottom, keep, nucleus, top
from .reduce import align, count, masked_max, masked_mean, masked_min, masked_sum
from .sets import every, oldest, recent, sink
from .shares import apportion, whole_shares
from .windows import avgpool, maxpool, softmax

__all__ = [
    "Ranking",
    "align",
    "apportion",
    "avgpool",
    "bottom",
    "ceil",
    "count",
    "every",
    "floor",
    "greatest",
    "index",
    "keep",
    "least",
    "masked_max",
    "masked_mean",
    "masked_min",
    "masked_sum",
    "maxpool",
    "nucleus",
    "oldest",
    "open_page",
    "page_any",
    "page_max",
    "page_mean",
    "page_min",
    "page_sum",
    "pages_to_tokens",
    "pick",
    "ratio",
    "recent",
    "round_even",
    "sink",
    "softmax",
    "split_pages",
    "top",
    "whole_shares",
]
