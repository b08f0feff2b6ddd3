"""How long forwards take: by the device's own clock where it works while the host goes on, else by the host's."""

from __future__ import annotations

import time
from collections import deque

import torch

from .scheduler import Work
from .stats import Counters

Begun = float | torch.cuda.Event


class Clock:
    """Adds the seconds of each forward to its requests and to the counters, once they are known. Waits for nothing."""

    def __init__(self, device: torch.device, counters: Counters) -> None:
        self._counters = counters
        self._on_device = device.type == "cuda"
        self._running: deque[tuple[Work, bool, torch.cuda.Event, torch.cuda.Event]] = deque()  # oldest first

    def start(self) -> Begun:
        return self._mark() if self._on_device else time.perf_counter()

    def stop(self, begun: Begun, work: Work) -> None:
        """The forward that began then is this work's, and all of it is launched."""
        if isinstance(begun, float):
            self._add(work, work.prefill, time.perf_counter() - begun)
        else:
            self._running.append((work, work.prefill, begun, self._mark()))
            self.settle()

    def settle(self) -> None:
        """Counts the forwards that the device has ended: those whose ids were read are among them."""
        while self._running and self._running[0][3].query():
            work, prefill, begin, end = self._running.popleft()
            self._add(work, prefill, begin.elapsed_time(end) / 1e3)

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _add(self, work: Work, prefill: bool, seconds: float) -> None:
        self._counters.forward(work.tokens * len(work.requests), prefill, seconds)
        for request in work.requests:
            if prefill:
                request.prefill_seconds += seconds
            else:
                request.decode_seconds += seconds
