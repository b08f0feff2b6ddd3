"""One request from arrival to its last token: what it asked for, how far it is, and what it returns.

Knows nothing about pages or models; `tokens` is the prompt followed by everything generated so far.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import StrEnum

from sparsec_runtime.sampler import SamplingParams


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestError(Exception):
    """A request cannot be served. The engine reports it on that request and goes on."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one generated token: its own, and the best `(id, logprob)` pairs."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step made of one request. `text` and `token_ids` are what is new in this step."""

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    usage: Usage | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class Usage:
    """Accounting of a finished request. Bytes are those of the pages it owned after its last commit."""

    prompt_tokens: int
    new_tokens: int
    kv_bytes: int
    kv_bytes_peak: int
    state_bytes: int
    tokens_evicted: float
    prefill_seconds: float
    decode_seconds: float
    preemptions: int


_arrivals = itertools.count()


@dataclass(slots=True)
class Request:
    """Mutable state of one request inside the engine.

    computed: tokens whose K and V are in the cache (or were, before eviction): also the next logical position.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    params: dict[str, int | float]
    arrival: int = field(default_factory=lambda: next(_arrivals))
    status: Status = Status.WAITING
    generated: list[int] = field(default_factory=list)
    computed: int = 0
    handle: int | None = None
    reserved: int = 0
    preemptions: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def prefilling(self) -> bool:
        return self.computed < len(self.prompt)

    @property
    def known_tokens(self) -> int:
        return len(self.prompt) + len(self.generated)

    def token_at(self, index: int) -> int:
        return self.prompt[index] if index < len(self.prompt) else self.generated[index - len(self.prompt)]

    def restart(self) -> None:
        """Forget the cache, keep the tokens: the prompt is prefilled again and generated tokens are fed through decode."""
        self.status, self.computed, self.handle, self.reserved = Status.WAITING, 0, None, 0
        self.preemptions += 1
