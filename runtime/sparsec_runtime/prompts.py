"""A prompt read without an engine: chunk after chunk through the model and the manager's hooks, as the engine runs it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .cache import CacheManager
from .models.loading import LoadedModel
from .step import StepBatch

Watch = Callable[[int, int], None]  # told the first token of a chunk, and one behind its last, once it is launched


@torch.no_grad()
def prefill(model: LoadedModel, manager: CacheManager, handle: int, ids: Tensor, chunk: int, watch: Watch | None = None) -> Tensor:
    """Computes a prompt ids [token] of an open request; returns logits [vocab] at its last token."""
    assert len(ids), "a prompt has a token"
    for start in range(0, len(ids), chunk):
        end = min(start + chunk, len(ids))
        manager.begin_step(StepBatch((handle,), end - start, "prefill", end == len(ids), (0,)))
        hidden = model.hidden_states(ids[None, start:end], torch.arange(start, end, device=ids.device)[None], manager)
        if end == len(ids):
            logits = model.logits(hidden[:, -1])[0]
        manager.finish()
        manager.commit_step()
        if watch is not None:
            watch(start, end)
    return logits


def random_ids(model: LoadedModel, tokens: int, seed: int) -> Tensor:
    """ids [token] int64 on the model's device."""
    generator = torch.Generator(device=model.device).manual_seed(seed)
    return torch.randint(0, model.shape.vocab, (tokens,), generator=generator, device=model.device)
