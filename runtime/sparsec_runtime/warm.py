"""Prompts of nobody before the first request: what compiles a kernel for a prompt's chunks, for its hooks or for the rows that they move does it here."""

from __future__ import annotations

import torch

from .cache import CacheManager
from .memory import OutOfPages
from .models.loading import LoadedModel
from .step import StepBatch

LONGEST = 4096  # tokens: more than default budgets keep
FAILURES = (OutOfPages, RuntimeError, ValueError, ArithmeticError, IndexError, MemoryError)


@torch.no_grad()
def read_prompts(model: LoadedModel, manager: CacheManager) -> None:
    """Two prompts at default params, one of a length that kernels are compiled for apart (a multiple of 16); nothing of them stays."""
    for less in (0, 5):
        tokens = _longest(manager) - less
        if tokens > 0:
            _read(model, manager, tokens)


def _longest(manager: CacheManager) -> int:
    """The longest that fits, half of LONGEST or a quarter of it and so on."""
    tokens = min(LONGEST, int(manager.model_facts["context"]) - 1) // 16 * 16
    while tokens > 0 and manager.page_need(tokens, 1, manager.chunk, manager.resolve_params({}, prompt_tokens=tokens)) > manager.pages().free:
        tokens = tokens // 2 // 16 * 16
    return tokens


def _read(model: LoadedModel, manager: CacheManager, tokens: int) -> None:
    handle = manager.open("warm-up", manager.resolve_params({}, prompt_tokens=tokens))
    try:
        for start in range(0, tokens, manager.chunk):
            positions = torch.arange(start, min(start + manager.chunk, tokens), device=model.device)[None]
            manager.begin_step(StepBatch((handle,), positions.shape[1], "prefill", start + positions.shape[1] == tokens, (0,)))
            hidden = model.hidden_states(positions % model.shape.vocab, positions, manager)
            model.logits(hidden[:, -1])
            manager.finish()
            manager.commit_step()
    except FAILURES:  # a request that asks for the same is told
        manager.rollback_step()
    finally:
        manager.close(handle)
