"""Requests of nobody before the first one: what compiles a kernel for a prompt's chunks, for its hooks or for rows that go does it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cache import CacheManager
from .memory import OutOfPages
from .models.loading import LoadedModel
from .prompts import prefill, random_ids
from .step import STEP_FAILURES, StepBatch

if TYPE_CHECKING:
    from .gpu.graphs import DecodeGraphs

LONGEST = 4096  # tokens of a prompt: more than default budgets keep
STEPS = 256  # of decode, at most: default intervals of evictions are shorter


def serve_nobody(model: LoadedModel, manager: CacheManager, graphs: DecodeGraphs | None = None) -> None:
    """Two prompts at default params, one of a length that kernels are compiled for apart (a multiple of 16), and decode steps until rows go, if they ever do.

    Nothing of them stays. What fails here is left to the request that asks for the same: that one is told.
    """
    longest = _longest(manager)
    for tokens in (longest, longest - 5):
        if tokens <= 0:
            continue
        handle = manager.open("nobody", manager.resolve_params({}, prompt_tokens=tokens))
        try:
            prefill(model, manager, handle, random_ids(model, tokens, 0), manager.chunk)
            if graphs is not None and graphs.lets_rows_go and tokens == longest:
                _decode(graphs, handle)
        except (OutOfPages, *STEP_FAILURES):
            manager.rollback_step()
            if graphs is not None:
                graphs.rollback_step()
        finally:
            manager.close(handle)


def _longest(manager: CacheManager) -> int:
    """The longest prompt that fits, half of LONGEST or a quarter of it and so on."""
    tokens = min(LONGEST, int(manager.model_facts["context"]) - STEPS) // 16 * 16
    while tokens > 0 and manager.page_need(tokens, STEPS, manager.chunk, manager.resolve_params({}, prompt_tokens=tokens)) > manager.pages().free:
        tokens = tokens // 2 // 16 * 16
    return tokens


def _decode(graphs: DecodeGraphs, handle: int) -> None:
    went = graphs.bulk_steps
    for step in range(STEPS):
        graphs.begin_step(StepBatch((handle,), 1, "decode", True, (step,)))
        graphs.run([0] if step == 0 else None)
        graphs.commit_step()
        if graphs.bulk_steps > went:
            return
