"""MAIN PATH of a run: admit -> plan -> forward -> sample -> finish -> commit, once per step.

The engine knows requests, a model and a generated CacheManager; it knows no method, no page table and no kernel. A request
may fail; the engine may not: whatever goes wrong in a forward is rolled back and ends the request that caused it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sparsec_runtime.admission import Admission
from sparsec_runtime.cache import CacheManager, StepBatch
from sparsec_runtime.chunks import chunk_sizes
from sparsec_runtime.clock import Clock
from sparsec_runtime.gpu.row_sampling import RowSampling, in_graph
from sparsec_runtime.gpu.start import decode_graphs
from sparsec_runtime.gpu.transfer import sent
from sparsec_runtime.memory import OutOfPages
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.pending import PendingIds, joined
from sparsec_runtime.request import FinishReason, Request, RequestError, RequestOutput, Status, TokenLogprobs, Usage
from sparsec_runtime.results import logprobs_of, usage_of
from sparsec_runtime.sampler import Logprobs, SamplingParams, sample
from sparsec_runtime.scheduler import Scheduler, Work
from sparsec_runtime.sizing import pool_tokens
from sparsec_runtime.stats import Counters, Stats
from sparsec_runtime.step import STEP_FAILURES
from sparsec_runtime.stops import StopWatch
from sparsec_runtime.warm import serve_nobody

if TYPE_CHECKING:
    from sparsec_runtime.gpu.graphs import DecodeGraphs

NO_NUMBERS = "the model returned logits that are not numbers"


class Engine:
    """Serves many requests over one model with one compiled method.

    method: the CacheManager class of an artifact (`load_artifact(...)`); model: from `load_model(...)`.
    """

    def __init__(self, method: type[CacheManager], model: LoadedModel, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.model = model
        chunks = chunk_sizes(method.FACTS, model.shape, self.options)
        self.manager = method(
            model.shape, model.rope, model.dtype, model.device,
            pool_tokens=pool_tokens(method, model, self.options), max_requests=self.options.max_running,
            chunk=self.options.chunk, shorter_chunks=chunks.shorter(model.shape.max_positions),
        )  # fmt: skip
        if self.manager.chunk_attention is not None:
            self.manager.chunk_attention.warm_up()
        self.graphs, self.eager_because = decode_graphs(model, self.manager, self.options)
        if model.device.type == "cuda" and self.options.capture_at_start:
            serve_nobody(model, self.manager, self.graphs)
        self._admission = Admission(model, self.manager, self.options)
        self.scheduler = Scheduler(chunks, self.options.token_budget, self.options.max_running)
        self._requests: dict[str, Request] = {}
        self._watches: dict[str, StopWatch] = {}
        self._counters = Counters()
        self._clock = Clock(model.device, self._counters)
        self._pending: PendingIds | None = None  # of the newest decode step, where graphs choose ids
        self._told: list[RequestOutput] = []  # what late ids made of requests, for the next `step` to return

    # ---- what a caller does ------------------------------------------------------------------

    def add_request(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        params: Mapping[str, object] | None = None,
        request_id: str | None = None,
    ) -> str:
        """Queue a prompt (text, or token ids). Raises RequestError if it can never be served; nothing is kept then.

        params: values of the method's per-request params, e.g. {"budget": 512} or {"budget": "25%"}.
        """
        sampling = sampling or SamplingParams()
        ids = tuple(self.model.tokenizer.encode(prompt)) if isinstance(prompt, str) else tuple(int(token) for token in prompt)
        name = request_id or self._free_name()
        if name in self._unended:
            raise RequestError(f"request id {name!r} is in use: choose another, or none")
        request = self._admission.request(name, ids, sampling, params or {})
        self._counters.arrived += 1
        self._requests[name] = request
        self._watches[name] = StopWatch(self.model.tokenizer.stream(), sampling, self.model.eos_ids)
        self.scheduler.add(request)
        return name

    def step(self) -> list[RequestOutput]:
        """One engine step: prefill chunks, then the whole decode batch. Empty when there is nothing to do, or nothing to tell yet: where decode
        runs as graphs, a step's ids are returned by the next one, unless the step has chunks: then they would wait for those of the next one."""
        self._admit()
        plan = self.scheduler.plan()
        if plan.empty:
            return self._take_told()
        self._counters.steps += 1
        outputs = [output for chunk in plan.chunks if chunk.due for output in self._run(chunk.work)]
        outputs += self._decode(plan.decodes)
        if plan.chunks:
            self._tell_pending()
        return self._take_told() + outputs

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        params: Mapping[str, object] | None = None,
    ) -> Iterator[RequestOutput]:
        """Queue all prompts, or none if one is refused, and yield outputs as they come, until all of them are finished.

        Outputs of other requests in the engine are not returned: who mixes both drives `step` instead.
        """
        each = [sampling] * len(prompts) if sampling is None or isinstance(sampling, SamplingParams) else list(sampling)
        if len(each) != len(prompts):
            raise ValueError(f"{len(each)} sampling params for {len(prompts)} prompts: give one for all, or one each")
        mine: set[str] = set()
        try:
            for prompt, chosen in zip(prompts, each):
                mine.add(self.add_request(prompt, chosen, params))
            while mine & self._unended:
                yield from (output for output in self.step() if output.request_id in mine)
        finally:  # a refused prompt, or a caller who stopped listening
            for name in mine & self._unended:
                self.abort(name)

    def abort(self, request_id: str) -> RequestOutput:
        """End a request now and free what it holds. Raises KeyError for a request that is not in the engine.

        The output has what `step` has not returned yet; if that ended the request, its reason is that one.
        """
        if request_id not in self._unended:
            raise KeyError(f"no request {request_id!r} in the engine: it is finished, or was never added")
        self._tell_pending()
        untold = [output for output in self._told if output.request_id == request_id]
        self._told = [output for output in self._told if output.request_id != request_id]
        if request_id in self._requests:
            untold.append(self._end(self._requests[request_id], FinishReason.ABORT))
        return joined(untold)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do or to return."""
        return bool(self._unended)

    @property
    def _unended(self) -> set[str]:
        """Requests whose end no caller has seen: those in the engine, and those that ended with an id that `step` has not returned."""
        return self._requests.keys() | {output.request_id for output in self._told}

    def stats(self) -> Stats:
        self._clock.settle()
        return self._counters.stats(self.manager.pages(), len(self.scheduler.waiting), len(self.scheduler.running))

    def usage(self, request_id: str) -> Usage:
        """Accounting of a request that is still in the engine."""
        self._clock.settle()
        return usage_of(self._requests[request_id], self.manager)

    def params_of(self, request_id: str) -> dict[str, int | float]:
        """The per-request params of a request in the engine, with defaults and shares resolved."""
        return dict(self._requests[request_id].params)

    def progress(self, request_id: str) -> int:
        """Tokens of a request in the engine that have been computed."""
        return self._requests[request_id].computed

    # ---- admission ---------------------------------------------------------------------------

    def _free_name(self) -> str:
        numbers = itertools.count(self._counters.arrived)
        return next(name for name in (f"request-{number}" for number in numbers) if name not in self._unended)

    def _admit(self) -> None:
        for request in self.scheduler.admit(self._admission.free(self.scheduler.running)):
            request.handle = self.manager.open(request.request_id, request.params)

    # ---- one forward -------------------------------------------------------------------------

    def _decode(self, requests: tuple[Request, ...]) -> list[RequestOutput]:
        """One token each. Ids that are on their way feed the same rows again on the device; for other rows they are read first."""
        if self._pending is not None and not self._pending.feeds(requests):
            self._tell_pending()
        work = Work(requests, 1, last=True).running()
        outputs = self._run(work) if work.requests else []
        if self._pending is not None and self._pending.ends_one:
            self._tell_pending()
        return outputs

    def _run(self, work: Work) -> list[RequestOutput]:
        """Plan pages, run the forward, and give each row its token; on failure undo and fail the row that caused it."""
        try:
            work = self._make_room(work)
        except OutOfPages as shortage:
            return [self._end(self.scheduler.running[0], FinishReason.ERROR, self._admission.outgrown(shortage))]
        if not work.requests:
            return []
        begun = self._clock.start()
        try:
            sampled = self._forward(work)
        except STEP_FAILURES as error:
            self._steps(work).rollback_step()
            self._tell_pending()
            return self._isolate(work, error)
        work = work.running()
        if work.requests:
            self._clock.stop(begun, work)
        return self._collect(work, sampled)

    def _make_room(self, work: Work) -> Work:
        """Allocate the step's pages. Preempts the youngest until they fit; the oldest always makes progress.

        Raises OutOfPages where one request is alone and still does not fit: admission reserved less than all of its tokens.
        """
        requests = work.requests
        while requests:
            try:
                self._steps(work).begin_step(StepBatch(
                    handles=tuple(request.handle for request in requests), tokens=work.tokens,
                    phase="prefill" if work.prefill else "decode", prompt_done=work.last,
                    steps=tuple(max(0, request.computed - len(request.prompt)) for request in requests),
                ))  # fmt: skip
                break
            except OutOfPages:
                if self._pending is not None:  # some requests may end with these ids
                    self._tell_pending()
                    requests = tuple(request for request in requests if request.status is Status.RUNNING)
                    continue
                victim = self.scheduler.victim()
                if victim is None:
                    raise
                self._preempt(victim)
                requests = tuple(request for request in requests if request is not victim)
        return Work(requests, work.tokens, work.last)

    def _preempt(self, request: Request) -> None:
        self.manager.close(request.handle)
        self.scheduler.remove(request)
        request.restart()
        self._admission.reserve(request)
        self.scheduler.add(request)
        self._counters.preemptions += 1

    @torch.no_grad()
    def _forward(self, work: Work) -> tuple[Tensor, Logprobs | None] | None:
        """Sampled ids [row], or None where the chunk does not end a prompt, or they are on their way. Commits the step."""
        if self._steps(work) is self.graphs:
            return self._decode_in_graph(work, self.graphs)
        rows = [[request.token_at(request.computed + n) for n in range(work.tokens)] for request in work.requests]
        starts = [request.computed for request in work.requests]
        device = self.model.device
        ids = sent(np.array(rows, dtype=np.int64), device)
        positions = sent(np.array(starts, dtype=np.int64), device)[:, None] + torch.arange(work.tokens, device=device)
        hidden = self.model.hidden_states(ids, positions, self.manager)
        sampled = self._sample(work, self.model.logits(hidden[:, -1])) if work.last else None
        self.manager.finish()
        self.manager.commit_step()
        return sampled

    def _steps(self, work: Work) -> CacheManager | DecodeGraphs:
        """Who runs a step: the graphs run decode rows, where the method and the device have them."""
        return self.manager if work.prefill or self.graphs is None else self.graphs

    def _decode_in_graph(self, work: Work, graphs: DecodeGraphs) -> tuple[Tensor, Logprobs | None] | None:
        """The ids stay on the device where the graph chose them and all are new; the last step's are read while this one runs."""
        if self._pending is not None:
            ids, _ = graphs.run()
            self._tell_pending()
        else:
            chosen = all(in_graph(request.sampling) for request in work.requests)
            rows = [RowSampling(request.sampling, request.prompt, request.generated) for request in work.requests] if chosen else ()
            ids, logits = graphs.run([request.token_at(request.computed) for request in work.requests], rows)
            if not chosen or any(request.computed + 1 < request.known_tokens for request in work.requests):
                sampled = self._sample(work, logits)
                graphs.commit_step()
                return sampled
        pending = PendingIds(work.requests, ids)
        graphs.commit_step()
        self._pending = pending if work.running().requests else None
        return None

    def _tell_pending(self) -> None:
        """Reads the ids that are on their way: each request goes on or ends with its own, out of the step that runs, if one does."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        for request, token in pending.read():
            self._told.append(self._append(request, token, ()) if token >= 0 else self._end(request, FinishReason.ERROR, f"ArithmeticError: {NO_NUMBERS}"))

    def _take_told(self) -> list[RequestOutput]:
        told, self._told = self._told, []
        return told

    def _sample(self, work: Work, logits: Tensor) -> tuple[Tensor, Logprobs | None]:
        if not bool(torch.isfinite(logits).any(dim=-1).all()) or bool(torch.isnan(logits).any()):
            raise ArithmeticError(NO_NUMBERS)
        history = [(request.prompt, request.generated) for request in work.requests]
        return sample(logits, [r.sampling for r in work.requests], history, [len(r.generated) for r in work.requests])

    def _isolate(self, work: Work, error: Exception) -> list[RequestOutput]:
        """A forward of several (decode) rows failed: run those that late ids did not end one by one, so that only the guilty one ends."""
        left = work.running().requests
        if len(work.requests) == 1:
            return [self._end(request, FinishReason.ERROR, f"{type(error).__name__}: {error}") for request in left]
        outputs = []
        for request in left:
            if request.status is Status.RUNNING:
                outputs += self._decode((request,))
        return outputs

    def _collect(self, work: Work, sampled: tuple[Tensor, Logprobs | None] | None) -> list[RequestOutput]:
        ids = sampled[0].tolist() if sampled is not None else []
        outputs = []
        for row, request in enumerate(work.requests):
            request.computed += work.tokens
            if request.computed == request.known_tokens and sampled is not None:
                outputs.append(self._append(request, ids[row], logprobs_of(request, sampled[1], row, ids[row])))
        return outputs

    def _append(self, request: Request, token: int, logprobs: tuple[TokenLogprobs, ...]) -> RequestOutput:
        request.generated.append(token)
        self._counters.generated += 1
        text, reason = self._watches[request.request_id].push(token)
        if reason is not None:
            return self._end(request, reason, text=text, token_ids=(token,), logprobs=logprobs)
        return RequestOutput(request.request_id, text, (token,), logprobs)

    def _end(self, request: Request, reason: FinishReason, error: str | None = None, **new: object) -> RequestOutput:
        if request.handle is not None and self.graphs is not None:
            self.graphs.drop(request.handle)
        self._clock.settle()
        usage = usage_of(request, self.manager)
        if request.handle is not None:
            self.manager.close(request.handle)
            request.handle = None
        self.scheduler.remove(request)
        request.status = Status.FINISHED
        del self._requests[request.request_id], self._watches[request.request_id]
        self._counters.finished(reason)
        return RequestOutput(request.request_id, finish_reason=reason, error=error, usage=usage, **new)
