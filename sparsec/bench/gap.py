"""How long decoding requests wait for a token while an engine reads a long prompt, and what the prompt loses to them. Wall-clock time, as a caller sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from sparsec_runtime.engine import Engine
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.prompts import prefill, random_ids
from sparsec_runtime.request import RequestOutput
from sparsec_runtime.sampler import SamplingParams

from sparsec.bench.clock import wait_for
from sparsec.bench.workload import Workload
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

NEW_TOKENS = 512  # of each decoding request: more than the prompt has chunks
SETTLING_STEPS = 16  # between the prompts of the decoding requests and the measured one
SLACK_TOKENS = 64  # of each request, for pages that are not full


@dataclass(frozen=True, slots=True)
class Interleaved:
    """gap_ms: the longest time between two tokens of a decoding request, from the last before the prompt arrived to the prompt's own first one.

    prompt_ms: from its arrival to its first token; alone_ms: of the same prompt in whole chunks with nobody beside it. steps: of the engine meanwhile.
    """

    gap_ms: float
    prompt_ms: float
    alone_ms: float
    steps: int

    @property
    def loss(self) -> float:
        return self.prompt_ms / self.alone_ms


class GapBench:
    """One engine; prompt: the workload of the long prompt; decoding: that of the requests beside it, of the same method."""

    def __init__(self, prompt: Workload, decoding: Workload, model: LoadedModel) -> None:
        assert (prompt.method, prompt.params) == (decoding.method, decoding.params), "one engine runs one method"
        self.model, self.decoding, self.chunk = model, decoding, prompt.chunk
        self.tokens = min(prompt.context, model.shape.max_positions - 1)
        compilation = Compilation.load(prompt.method, params=dict(prompt.params), model=from_shape(model.shape))
        self.params = compilation.dynamic_params
        memory = self.tokens + 1 + decoding.batch * (decoding.context + NEW_TOKENS) + (decoding.batch + 1) * SLACK_TOKENS
        options = EngineOptions(chunk=self.chunk, token_budget=self.chunk, max_running=decoding.batch + 1, memory_tokens=memory, capture_at_start=False)
        self.engine = Engine(load_manager(compilation), model, options)

    def measure(self) -> Interleaved:
        self._alone(min(self.tokens, 2 * self.chunk))  # discarded: kernels compile
        alone = self._alone(self.tokens)
        names = self._decoding_requests()
        gap, prompt, steps = self._prompt_beside(names)
        for name in names:
            self.engine.abort(name)
        return Interleaved(round(gap * 1e3, 2), round(prompt * 1e3, 2), round(alone * 1e3, 2), steps)

    def _alone(self, tokens: int) -> float:
        """Seconds of a prompt in whole chunks, without an engine around it."""
        manager = self.engine.manager
        handle = manager.open("alone", manager.resolve_params(self.params, prompt_tokens=tokens))
        wait_for(self.model.device)
        begin = time.perf_counter()
        prefill(self.model, manager, handle, random_ids(self.model, tokens, 0), self.chunk)
        wait_for(self.model.device)
        seconds = time.perf_counter() - begin
        manager.close(handle)
        return seconds

    def _decoding_requests(self) -> list[str]:
        """Names of requests whose prompts are read and which have decoded for some steps."""
        names = [self._add(self.decoding.context, row + 1, NEW_TOKENS) for row in range(self.decoding.batch)]
        while any(self.engine.progress(name) < self.decoding.context for name in names):
            self.engine.step()
        for _ in range(SETTLING_STEPS):
            self.engine.step()
        return names

    def _prompt_beside(self, names: list[str]) -> tuple[float, float, int]:
        """Longest gap and the prompt's time, in seconds, and steps."""
        last, gap, steps = dict.fromkeys(names, time.perf_counter()), 0.0, 0
        begin = time.perf_counter()
        prompt = self._add(self.tokens, 0, 1)
        for outputs in self._steps():
            now, steps = time.perf_counter(), steps + 1
            for name in {output.request_id for output in outputs if output.token_ids} & last.keys():
                gap, last[name] = max(gap, now - last[name]), now
            assert not any(output.finished for output in outputs if output.request_id in last), "a decoding request ended: NEW_TOKENS are too few"
            if any(output.request_id == prompt for output in outputs):
                return max(gap, *(now - then for then in last.values())), now - begin, steps
        raise AssertionError("the prompt got no token")

    def _steps(self) -> Iterator[list[RequestOutput]]:
        while self.engine.busy:
            yield self.engine.step()

    def _add(self, tokens: int, seed: int, new: int) -> str:
        return self.engine.add_request(random_ids(self.model, tokens, seed).tolist(), SamplingParams(max_tokens=new, ignore_eos=True), self.params)
