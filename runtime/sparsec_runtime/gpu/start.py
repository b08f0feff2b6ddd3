"""Whether an engine decodes in graphs, without importing Triton where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cache import CacheManager
from ..models.loading import LoadedModel
from ..options import EngineOptions

if TYPE_CHECKING:
    from .graphs import DecodeGraphs


def decode_graphs(model: LoadedModel, manager: CacheManager, options: EngineOptions) -> tuple[DecodeGraphs | None, str]:
    """The graphs, or None and the reason."""
    if model.device.type != "cuda":
        return None, f"the model lies on {model.device.type}"
    if not options.graphs:
        return None, "the engine's options say graphs=False"
    from .graphs import CannotCapture, DecodeGraphs

    try:
        return DecodeGraphs(model, manager, options.memory_tokens), ""
    except CannotCapture as reason:
        return None, str(reason)
