"""The one module that generated code imports: names that stay as they are within an ABI version. See docs/internals.md, ABI."""

from __future__ import annotations

from . import ops
from .attention.observe import QueryBlock
from .cache import CacheManager
from .decode_plan import DecodePlan, Keep, Mass, Moves, PageChoice, TokenChoice
from .layout import Codec, Counts, Layout, StateLayout, SummaryLayout, ZoneLayout
from .params import ParamSpec
from .summaries import PageView
from .views import View

ABI_VERSION = 2

__all__ = [
    "ABI_VERSION",
    "CacheManager",
    "Codec",
    "Counts",
    "DecodePlan",
    "Keep",
    "Layout",
    "Mass",
    "Moves",
    "PageChoice",
    "PageView",
    "ParamSpec",
    "QueryBlock",
    "StateLayout",
    "SummaryLayout",
    "TokenChoice",
    "View",
    "ZoneLayout",
    "ops",
]
