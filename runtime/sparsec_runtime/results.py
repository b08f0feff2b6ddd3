"""What a caller learns of a request besides its text: log-probabilities of a token, and what the request used."""

from __future__ import annotations

import math

from sparsec_runtime.cache import CacheManager
from sparsec_runtime.request import Request, TokenLogprobs, Usage
from sparsec_runtime.sampler import Logprobs


def logprobs_of(request: Request, all_rows: Logprobs | None, row: int, token: int) -> tuple[TokenLogprobs, ...]:
    """Of the token that was sampled in a row of a batch; empty where the request asks for none."""
    wanted = request.sampling.logprobs
    if wanted is None or all_rows is None:
        return ()
    pairs = zip(all_rows.top_ids[row, :wanted].tolist(), all_rows.top[row, :wanted].tolist())
    chosen = float(all_rows.chosen[row])
    assert math.isfinite(chosen), "a sampled token has no probability"
    return (TokenLogprobs(token, chosen, tuple(pairs)),)


def usage_of(request: Request, manager: CacheManager) -> Usage:
    """Accounting up to now; a request that waits holds no bytes."""
    held = manager.bytes(request.handle) if request.handle is not None else None
    return Usage(
        prompt_tokens=len(request.prompt),
        new_tokens=len(request.generated),
        kv_bytes=held.kv if held else 0,
        kv_bytes_peak=held.peak if held else 0,
        state_bytes=held.state if held else 0,
        tokens_evicted=manager.tokens_evicted(request.handle) if held else 0.0,
        prefill_seconds=request.prefill_seconds,
        decode_seconds=request.decode_seconds,
        preemptions=request.preemptions,
    )
