"""When a request is over: end-of-sequence ids, stop ids, stop strings, length. Holds back text that may become a stop string."""

from __future__ import annotations

from sparsec_runtime.models.tokenizer import Stream
from sparsec_runtime.request import FinishReason
from sparsec_runtime.sampler import SamplingParams


class StopWatch:
    """Turns generated ids into text for the client, one id at a time."""

    def __init__(self, stream: Stream, sampling: SamplingParams, eos_ids: tuple[int, ...]) -> None:
        self._stream, self._sampling = stream, sampling
        self._ends = frozenset(sampling.stop_ids) | (frozenset() if sampling.ignore_eos else frozenset(eos_ids))
        self._held = ""
        self._count = 0

    def push(self, token: int) -> tuple[str, FinishReason | None]:
        """Text that may be shown now, and why the request ends here, if it does. An end token adds no text."""
        self._count += 1
        if token in self._ends:
            return self._release(), FinishReason.STOP
        self._held += self._stream.push(token)
        cut = self._first_stop()
        if cut is not None:
            text, self._held = self._held[:cut], ""
            return text, FinishReason.STOP
        if self._count >= self._sampling.max_tokens:
            self._held += self._stream.flush()
            cut = self._first_stop()
            text, self._held = self._held[:cut], ""
            return text, FinishReason.LENGTH if cut is None else FinishReason.STOP
        return self._showable(), None

    def _first_stop(self) -> int | None:
        found = [at for at in (self._held.find(stop) for stop in self._sampling.stop) if at >= 0]
        return min(found, default=None)

    def _showable(self) -> str:
        """Everything but the longest tail that is the beginning of a stop string."""
        keep = max((_overlap(self._held, stop) for stop in self._sampling.stop), default=0)
        at = len(self._held) - keep
        text, self._held = self._held[:at], self._held[at:]
        return text

    def _release(self) -> str:
        text, self._held = self._held + self._stream.flush(), ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
