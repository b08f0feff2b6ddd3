"""sparsec: a declarative compiler and engine for sparse-attention LLM inference.

`sparsec.replay(...)` runs a method on recorded tensors; it is loaded on first use, so that checking a spec needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsec.replay import replay as replay
    from sparsec.trace import Recorded as Recorded
    from sparsec.trace import Trace as Trace

_TRACE = ("Recorded", "Trace")

__all__ = ["Recorded", "Trace", "replay"]


def __getattr__(name: str) -> object:
    if name == "replay":
        return import_module("sparsec.replay")  # a module that can be called
    if name in _TRACE:
        return getattr(import_module("sparsec.trace"), name)
    raise AttributeError(f"module 'sparsec' has no attribute {name!r}")
