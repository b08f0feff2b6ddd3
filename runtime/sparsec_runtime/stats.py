"""Counters of an engine: what it has done, and what it holds now."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsec_runtime.memory import PageCounts
from sparsec_runtime.request import FinishReason


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot. Tokens per second count the time of forwards alone; pages are over all pools."""

    steps: int
    waiting: int
    running: int
    finished: dict[str, int]
    prefill_tokens: int
    decode_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    generated: int
    preemptions: int
    pages: PageCounts


@dataclass(slots=True)
class Counters:
    arrived: int = 0
    steps: int = 0
    generated: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    ends: dict[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in FinishReason})

    def forward(self, tokens: int, prefill: bool, seconds: float) -> None:
        if prefill:
            self.prefill_tokens += tokens
            self.prefill_seconds += seconds
        else:
            self.decode_tokens += tokens
            self.decode_seconds += seconds

    def finished(self, reason: FinishReason) -> None:
        self.ends[reason.value] += 1

    def stats(self, pages: PageCounts, waiting: int, running: int) -> Stats:
        return Stats(
            steps=self.steps, waiting=waiting, running=running, finished=dict(self.ends),
            prefill_tokens=self.prefill_tokens, decode_tokens=self.decode_tokens,
            prefill_tokens_per_s=_rate(self.prefill_tokens, self.prefill_seconds),
            decode_tokens_per_s=_rate(self.decode_tokens, self.decode_seconds),
            generated=self.generated, preemptions=self.preemptions, pages=pages,
        )  # fmt: skip


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
