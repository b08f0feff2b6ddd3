"""Which work runs in a step: every decode row, and whole prefill chunks up to a token budget.

Admission goes by the derived peak of a method, in order of arrival. Chunks are run or deferred, never cut to what is
left of the budget, because chunk boundaries must not depend on batch mates: where they lie, `ChunkSizes` says. While rows decode, the chunks of a
step together cost no more than one may, so that no row waits longer for its token.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from math import inf

from sparsec_runtime.chunks import ChunkSizes
from sparsec_runtime.request import Request, Status


@dataclass(frozen=True, slots=True)
class Work:
    """The rows of one forward: either decode rows (one token each) or one chunk."""

    requests: tuple[Request, ...]
    tokens: int
    last: bool  # the tokens end a prompt, or are decode tokens

    @property
    def prefill(self) -> bool:
        return self.requests[0].prefilling

    def running(self) -> Work:
        """Without the requests that ended since the work was planned."""
        return Work(tuple(request for request in self.requests if request.status is Status.RUNNING), self.tokens, self.last)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, end) of one prompt; `last` if it ends the prompt."""

    request: Request
    start: int
    end: int

    @property
    def last(self) -> bool:
        return self.end == len(self.request.prompt)

    @property
    def due(self) -> bool:
        """Whether it is still what its request needs next: that may have ended, or begun anew, since the chunk was planned."""
        return self.request.status is Status.RUNNING and self.request.computed == self.start

    @property
    def work(self) -> Work:
        return Work((self.request,), self.end - self.start, self.last)


@dataclass(frozen=True, slots=True)
class Plan:
    decodes: tuple[Request, ...]
    chunks: tuple[Chunk, ...]

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.chunks


class Scheduler:
    """Owns the queues. `capacity` and `needs` are counted in pages; `needs(request)` is the request's derived peak."""

    def __init__(self, chunks: ChunkSizes, token_budget: int, max_running: int) -> None:
        self.chunks, self.token_budget, self.max_running = chunks, token_budget, max_running
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._oldest_turn = True

    def add(self, request: Request) -> None:
        """Queue by arrival, so that a preempted request takes its old place again."""
        bisect.insort(self.waiting, request, key=lambda entry: entry.arrival)

    def remove(self, request: Request) -> None:
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def admit(self, free_reserve: int) -> list[Request]:
        """Move requests from the head of the queue while their reservation fits; nobody overtakes a larger one."""
        admitted = []
        while self.waiting and len(self.running) < self.max_running and self.waiting[0].reserved <= free_reserve:
            request = self.waiting.pop(0)
            free_reserve -= request.reserved
            request.status = Status.RUNNING
            bisect.insort(self.running, request, key=lambda entry: entry.arrival)
            admitted.append(request)
        return admitted

    def plan(self) -> Plan:
        decodes = tuple(r for r in self.running if not r.prefilling)
        return Plan(decodes, tuple(self._chunks(self.token_budget - len(decodes), self.chunks.limit if decodes else inf)))

    def _chunks(self, budget: int, work: float) -> list[Chunk]:
        """Whole chunks within `budget` tokens and `work` operations, but at least one chunk if any prompt waits. Turns alternate between the oldest and the shortest prompt."""
        cursor = {id(r): r.computed for r in self.running if r.prefilling}
        open_prompts = [r for r in self.running if r.prefilling]
        chunks: list[Chunk] = []
        while open_prompts:
            request = open_prompts[0] if self._oldest_turn else min(open_prompts, key=lambda r: len(r.prompt) - cursor[id(r)])
            start = cursor[id(request)]
            end = self.chunks.end_of(start, len(request.prompt))
            cost = self.chunks.work(start, end)
            if chunks and (end - start > budget or cost > work):
                break
            chunks.append(Chunk(request, start, end))
            self._oldest_turn = not self._oldest_turn
            budget, work = budget - (end - start), work - cost
            cursor[id(request)] = end
            if end == len(request.prompt):
                open_prompts.remove(request)
        return chunks

    def victim(self) -> Request | None:
        """Whom to preempt: the youngest, never the oldest, so that the oldest always makes progress."""
        return self.running[-1] if len(self.running) > 1 else None
