"""Prompt throughput of a whole model: tokens a second, the share of the device's matmul rate that is useful work, and what chunks take by context.

Useful work: two operations a weight and token (the head once a prompt), and the half of attention that a causal mask leaves, whatever a method skips.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.models.shape import ModelShape
from sparsec_runtime.prompts import prefill, random_ids

from sparsec.bench.clock import wait_for
from sparsec.bench.room import manager_with, pages_of_residents, probe_of, tokens_of
from sparsec.bench.workload import Workload
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

MATMUL = 8192  # rows, columns and depth of the matmul that stands for the device's rate
MATMUL_REPEATS = 20


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """Chunks that begin after `context` tokens: of whole chunks the median and the longest; `shorter` the longest of those that end a prompt early."""

    context: int
    count: int
    median_ms: float
    worst_ms: float
    shorter_ms: float | None


@dataclass(frozen=True, slots=True)
class MeasuredPrefill:
    """prompt_ms: of one prompt of the whole context, the median. floor_ms: of its useful work at matmul_tflops, since a prompt is bound by compute;
    ratio: prompt_ms over it; share: the inverse, tflops over matmul_tflops.

    worst_ratio: the longest chunk over the median of whole chunks after the same context.
    """

    prompt_ms: float
    each: tuple[float, ...]
    tok_s: float
    tflops: float
    matmul_tflops: float
    floor_ms: float
    ratio: float
    share: float
    worst_ratio: float
    kv_bytes: int
    peak_bytes: int
    chunks: tuple[ChunkTimes, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    start: int
    tokens: int
    milliseconds: float


def useful_flops(shape: ModelShape, tokens: int) -> int:
    """Of one prompt of so many tokens."""
    embeddings = shape.vocab * shape.hidden
    layers = shape.parameters - embeddings * (1 if shape.tied else 2)
    attention = shape.layers * 4 * shape.q_heads * shape.head_dim * (tokens * (tokens + 1) // 2)
    return 2 * (layers * tokens + embeddings) + attention


def by_context(chunks: list[Chunk], size: int) -> tuple[ChunkTimes, ...]:
    """Times of chunks of `size` tokens by where they begin; a start that only shorter chunks have is left out: nothing stands beside it."""
    found = []
    for start in sorted({chunk.start for chunk in chunks}):
        here = [chunk for chunk in chunks if chunk.start == start]
        whole = [chunk.milliseconds for chunk in here if chunk.tokens == size]
        shorter = [chunk.milliseconds for chunk in here if chunk.tokens < size]
        if whole:
            longest = round(max(shorter), 3) if shorter else None
            found.append(ChunkTimes(start, len(whole), round(statistics.median(whole), 3), round(max(whole), 3), longest))
    return tuple(found)


def worst_ratio(times: tuple[ChunkTimes, ...]) -> float:
    return max((max(bucket.worst_ms, bucket.shorter_ms or 0.0) / bucket.median_ms for bucket in times), default=1.0)


def measure_prefill(work: Workload, model: LoadedModel, lengths: int = 0) -> dict[str, object]:
    """The measured fields of a row: `work.repetitions` batches of prompts of the whole context, and `lengths` more prompts of random lengths up to it."""
    bench = PrefillBench(work, model)
    torch.cuda.reset_peak_memory_stats()
    bench.prompts([work.context])  # discarded: kernels compile, plans are built
    whole = [prompt for _ in range(work.repetitions) for prompt in bench.prompts([work.context] * work.batch)]
    drawn = torch.randint(1, work.context + 1, (lengths,), generator=torch.Generator().manual_seed(0)).tolist()
    chunks = [chunk for prompt in (*whole, *(bench.prompts([tokens])[0] for tokens in drawn)) for chunk in prompt]
    each = [sum(chunk.milliseconds for chunk in prompt) for prompt in whole]
    middle = statistics.median(each)
    flops, rate = useful_flops(model.shape, work.context), matmul_tflops(model.device)
    tflops, floor = flops / middle / 1e9, flops / rate / 1e9
    times = by_context(chunks, min(work.chunk, work.context))
    measured = MeasuredPrefill(
        round(middle, 3), tuple(round(value, 3) for value in each), round(work.context / middle * 1e3, 1), round(tflops, 1), round(rate, 1),
        round(floor, 3), round(middle / floor, 3), round(tflops / rate, 3), round(worst_ratio(times), 3), bench.kv_bytes, torch.cuda.max_memory_allocated(), times,
    )  # fmt: skip
    return {"dtype": str(model.dtype), "lengths": lengths, **asdict(measured)}


class PrefillBench:
    """`work.batch` requests whose prompts are computed one after another, in pools that hold all of them and one prompt's peak."""

    def __init__(self, work: Workload, model: LoadedModel) -> None:
        self.work, self.model = work, model
        compilation = Compilation.load(work.method, params=dict(work.params), model=from_shape(model.shape))
        method = load_manager(compilation)
        probe = probe_of(method, model)
        self.given, self.kv_bytes, self._drawn = compilation.dynamic_params, 0, 0
        params = probe.resolve_params(self.given, prompt_tokens=work.context)
        self.manager = manager_with(method, model, tokens_of(probe, pages_of_residents(probe, params, work, 2)), work.batch, work.chunk)

    def prompts(self, tokens: Sequence[int]) -> list[list[Chunk]]:
        """The chunks of prompts of so many tokens; each request stays until the last prompt's end."""
        opened = [self._prompt(count) for count in tokens]
        wait_for(self.model.device)
        self.kv_bytes = self.manager.bytes(opened[-1].handle).kv
        for prompt in opened:
            self.manager.close(prompt.handle)
        return [prompt.chunks() for prompt in opened]

    def _prompt(self, tokens: int) -> _Prompt:
        """Launches its chunks, marked on the device; the first begins where the prompt before ends."""
        manager, marks, bounds = self.manager, [self._mark()], []
        self._drawn += 1

        def watch(start: int, end: int) -> None:
            bounds.append((start, end - start))
            marks.append(self._mark())

        handle = manager.open(f"prompt {self._drawn}", manager.resolve_params(self.given, prompt_tokens=tokens))
        prefill(self.model, manager, handle, random_ids(self.model, tokens, self._drawn), self.work.chunk, watch)
        return _Prompt(handle, bounds, marks)

    def _mark(self) -> torch.cuda.Event:
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark


@dataclass(frozen=True, slots=True)
class _Prompt:
    """bounds: first token and size of each chunk; marks: before the first, and behind each."""

    handle: int
    bounds: list[tuple[int, int]]
    marks: list[torch.cuda.Event]

    def chunks(self) -> list[Chunk]:
        return [Chunk(start, size, one.elapsed_time(other)) for (start, size), one, other in zip(self.bounds, self.marks, self.marks[1:])]


def matmul_tflops(device: torch.device) -> float:
    """Of a bf16 product of square matrices, the median of repeats after one that is discarded."""
    a, b = (torch.randn((MATMUL, MATMUL), dtype=torch.bfloat16, device=device) for _ in range(2))
    marks = []
    for _ in range(MATMUL_REPEATS + 2):
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        marks.append(mark)
        torch.mm(a, b)
    torch.cuda.synchronize()
    times = [one.elapsed_time(other) for one, other in zip(marks[1:], marks[2:])]
    return 2 * MATMUL**3 / statistics.median(times) / 1e9
