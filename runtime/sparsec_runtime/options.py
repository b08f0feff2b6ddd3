"""What the person who starts an engine may choose; everything else is derived from the method."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes of one engine.

    chunk: prompt tokens per prefill forward, at most; chunk_tflop: operations of one, and of all chunks of a step in which requests decode, in 10^12:
    it bounds how long a decoding request waits for its next token. Far into a prompt chunks are halved until they keep it, down to 512 tokens, unless
    the method's results depend on the chunk size (`explain`: chunk invariance no) or max_running is 1. 180 is 0.3 s of an H200;
    token_budget: tokens per step over decode rows and chunks;
    memory_tokens: the pools together hold as many bytes of K and V as dense attention needs for this many tokens;
    reserve_tokens: new tokens that admission reserves per request (None: all of max_tokens, so that nobody is ever
    preempted); graphs: decode on a CUDA device runs as captured graphs where the method allows it; capture_at_start: for every batch size up to
    max_running before the first request (else each when it is first needed, which that request waits for, as one with penalties does anyway), and two
    requests of nobody are served at default params, so that no other waits for a compiler;
    debug: before every replay of a graph the addresses that it captured are checked, not once in 1,000 steps.
    """

    chunk: int = 512
    chunk_tflop: float = 180.0
    token_budget: int = 2048
    max_running: int = 64
    memory_tokens: int = 65536
    reserve_tokens: int | None = None
    seed: int = 0
    graphs: bool = True
    capture_at_start: bool = True
    debug: bool = False

    def __post_init__(self) -> None:
        for name in ("chunk", "token_budget", "max_running", "memory_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} = {value!r} is out of range: a whole number, at least 1")
        if not self.chunk_tflop > 0:
            raise ValueError(f"chunk_tflop = {self.chunk_tflop!r} is out of range: above 0")
        if self.reserve_tokens is not None and self.reserve_tokens < 1:
            raise ValueError(f"reserve_tokens = {self.reserve_tokens!r} is out of range: at least 1, or None for all of max_tokens")
