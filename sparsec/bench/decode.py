"""Decode throughput: repetitions of 32 warm-up steps and a window of 256 with the whole batch resident, synchronised only at the window's ends."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from sparsec_runtime.gpu.graphs import DecodeGraphs
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.params import Value
from sparsec_runtime.prompts import prefill, random_ids
from sparsec_runtime.step import StepBatch
from torch import Tensor
from torch.autograd import DeviceType

from sparsec.bench.clock import wait_for
from sparsec.bench.floor import floor_of
from sparsec.bench.room import manager_with, pages_of_residents, probe_of, tokens_of
from sparsec.bench.synthetic import fill_pools, open_after_prompt, shuffle_pages
from sparsec.bench.workload import Workload
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

IDLE_STEPS = 8  # consecutive steps between which the device's idle time is taken
FIRST_KERNEL = "begin_step"  # of every step
HEADS_APART = 2.0  # of made-up residents whose heads may differ; those of real prompts: 1.3 with random weights, 1.2 to 4.4 in SmolLM2's layers
DISCARDED_STEPS = 160  # of the workload before the repetitions: kernels compile, pages settle


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of results.

    ms_per_step: median of the repetitions; each: all of them. kv_bytes, state_bytes: of one request at the end of a window.
    host_ms: what the host spends on a step. bulk_steps: steps of a window after which rows were evicted or moved.
    prefill_ms: of one of the prompts that are computed, prefill_tok_s: of all of them; end_to_end_s: all prompts, warm-up and window, by the wall clock,
    where every prompt is computed; None without. idle_ms: of the device between two steps. kernels: of one captured step;
    profile: (kernel, launches, microseconds in all), longest first.
    """

    ms_per_step: float
    each: tuple[float, ...]
    tok_s: float
    floor_ms: float
    ratio: float
    kv_bytes: int
    state_bytes: int
    peak_bytes: int
    host_ms: float
    bulk_steps: int
    prefill_ms: float | None
    prefill_tok_s: float | None
    end_to_end_s: float | None
    idle_ms: float
    kernels: int
    profile: tuple[tuple[str, int, float], ...]

    def fields(self) -> dict[str, object]:
        """Of a row of results: without what was not measured."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Profile:
    """kernels: (name, launches, microseconds in all) of one replay, longest first. idle_ms: of the device, from a step's last kernel to the next one's first.

    held: rows of all requests after their prompts, in a layer and KV head, on average.
    """

    kernels: tuple[tuple[str, int, float], ...]
    idle_ms: float
    held: float


@dataclass(frozen=True, slots=True)
class _Opened:
    """A batch right after its prompts. ids: of its first step [row]. begin: of the first prompt, by the wall clock; prompts: seconds of those computed."""

    handles: tuple[int, ...]
    ids: list[int]
    begin: float
    prompts: float


@dataclass(frozen=True, slots=True)
class _Window:
    """milliseconds, host: a step. prompts, whole: seconds of the computed prompts, and of prompts, warm-up and window."""

    prompts: float
    whole: float
    milliseconds: float
    host: float
    kv: int
    state: int
    bulk: int


class DecodeBench:
    """A batch of one workload and the graphs that decode it.

    prompts: residents whose prompts are computed (None: as work.fill says); the others are made up. new: tokens that each has room for after its
    prompt (None: a window). contexts: prompt tokens by row, of made-up residents alone (None: work.context, all of them); ragged: rows of a
    layer's longest KV head over those of its shortest (None: HEADS_APART where heads may differ).
    """

    def __init__(
        self, work: Workload, model: LoadedModel, prompts: int | None = None, new: int | None = None, contexts: tuple[int, ...] | None = None,
        ragged: float | None = None,
    ) -> None:  # fmt: skip
        self.work, self.model = work, model
        self.contexts = contexts or (work.context,) * work.batch
        self.prompts = (work.batch if work.fill == "prompt" else 0) if prompts is None else prompts
        compilation = Compilation.load(work.method, params=dict(work.params), model=from_shape(model.shape))
        method = load_manager(compilation)
        self.ragged = ragged or (HEADS_APART if method.LAYOUT.scope == "head" else 1.0)
        probe = probe_of(method, model)
        self.params = probe.resolve_params(compilation.dynamic_params, prompt_tokens=work.context)
        self.values = {**compilation.static_values, **self.params}
        new = max(new or 0, work.warm_up + work.steps + 1)
        tokens = tokens_of(probe, pages_of_residents(probe, self.params, work, new, self.contexts))
        self.manager = manager_with(method, model, tokens, work.batch, work.chunk)
        rows = tokens[self.manager.storage.row_stream.name]
        self.graphs = DecodeGraphs(model, self.manager, pool_tokens=rows, tokens=max(self.contexts) + new)
        fill_pools(self.manager)
        shuffle_pages(self.manager)
        self._first: list[int] = []  # ids of the residents' first step

    def measure(self) -> Measured:
        work = self.work
        torch.cuda.reset_peak_memory_stats()
        self._window(min(DISCARDED_STEPS, work.steps), prompts=min(1, self.prompts))
        profile = self.profile()
        windows = [self._window(work.steps, self.prompts) for _ in range(work.repetitions)]
        each = [window.milliseconds for window in windows]
        middle, last = statistics.median(each), windows[-1]
        floor = floor_of(work, from_shape(self.model.shape)).milliseconds
        return Measured(
            round(middle, 4), tuple(round(value, 4) for value in each), round(work.batch / middle * 1e3, 1), round(floor, 3), round(middle / floor, 3),
            last.kv, last.state, torch.cuda.max_memory_allocated(), round(last.host, 3), last.bulk, *self._prompt_figures(windows), profile.idle_ms,
            sum(count for _, count, _ in profile.kernels), profile.kernels,
        )  # fmt: skip

    def _prompt_figures(self, windows: Sequence[_Window]) -> tuple[float | None, float | None, float | None]:
        """prefill_ms, prefill_tok_s and end_to_end_s of a row."""
        if self.prompts == 0:
            return None, None, None
        seconds, whole = (statistics.median(times) for times in zip(*((window.prompts, window.whole) for window in windows)))
        tokens = sum(self.contexts[: self.prompts])
        return round(seconds / self.prompts * 1e3, 3), round(tokens / seconds, 1), round(whole, 3) if self.prompts == len(self.contexts) else None

    def _open(self, prompts: int) -> _Opened:
        """The first `prompts` of the batch are computed, one after another; the device is waited for before them, and for their first ids."""
        wait_for(self.model.device)
        begin = time.perf_counter()
        handles, first = zip(*map(self._compute, range(prompts))) if prompts else ((), ())
        ids = torch.stack(first).tolist() if first else []
        seconds = time.perf_counter() - begin
        for row in range(prompts, len(self.contexts)):
            handles += (open_after_prompt(self.manager, f"row {row}", self.params, self.contexts[row], self.ragged),)
            ids += random_ids(self.model, 1, row).tolist()
        return _Opened(handles, ids, begin, seconds)

    def _compute(self, row: int) -> tuple[int, Tensor]:
        """The row's handle and its first id, a scalar that the device may not have yet."""
        handle = self.manager.open(f"row {row}", self.params)
        logits = prefill(self.model, self.manager, handle, random_ids(self.model, self.contexts[row], row), self.work.chunk)
        return handle, logits.argmax()

    def _close(self, handles: tuple[int, ...]) -> None:
        for handle in handles:
            self.manager.close(handle)

    def _window(self, steps: int, prompts: int) -> _Window:
        graphs, work = self.graphs, self.work
        opened = self._open(prompts)
        handles = opened.handles
        for step in range(work.warm_up):
            self._step(handles, step, opened.ids if step == 0 else None)
        bulk = graphs.bulk_steps
        wait_for(self.model.device)
        begin = time.perf_counter()
        host = 0.0
        for step in range(steps):
            before = time.perf_counter()
            self._step(handles, work.warm_up + step, None)
            host += time.perf_counter() - before
        wait_for(self.model.device)
        end = time.perf_counter()
        seconds, whole = end - begin, end - opened.begin
        held = self.manager.bytes(handles[0])
        self._close(handles)
        return _Window(opened.prompts, whole, seconds / steps * 1e3, host / steps * 1e3, held.kv, held.state, graphs.bulk_steps - bulk)

    def profile(self) -> Profile:
        """Steps at the lengths after the prompt, by the device's own clock."""
        from torch.profiler import ProfilerActivity, profile

        with self.resident() as handles:
            held = float(sum(self.manager.rows(handle).mean() for handle in handles))
            self.steps(handles, 3)
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as one:
                self.graphs.replay(self.work.batch)
                torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as several:
                self.steps(handles, IDLE_STEPS, first=3)
                torch.cuda.synchronize()
        rows = [(row.key[:60], row.count, round(row.self_device_time_total, 1)) for row in one.key_averages()]
        busy = [(event.name, event.time_range.start, event.time_range.end) for event in several.events() if event.device_type == DeviceType.CUDA]
        return Profile(tuple(sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])), round(idle_between(busy, FIRST_KERNEL) / 1e3, 4), held)

    @contextmanager
    def resident(self) -> Iterator[tuple[int, ...]]:
        """Handles of the batch, made up, until the block ends; `steps` decodes them."""
        opened = self._open(prompts=0)
        self._first = opened.ids
        yield opened.handles
        self._close(opened.handles)

    def steps(self, handles: tuple[int, ...], count: int, first: int = 0) -> None:
        for step in range(first, first + count):
            self._step(handles, step, self._first if step == 0 else None)

    def _step(self, handles: tuple[int, ...], step: int, ids: list[int] | None) -> None:
        graphs = self.graphs
        graphs.begin_step(StepBatch(handles, 1, "decode", True, (step,) * len(handles)))
        graphs.run(ids)
        graphs.commit_step()


def idle_between(busy: Sequence[tuple[str, float, float]], first: str) -> float:
    """Median time between steps in which nothing runs. busy: (name, start, end) of kernels and copies; `first` names the kernel that begins a step.

    Copies that the next step waits for lie between two steps and are not idle.
    """
    ordered = sorted(busy, key=lambda event: event[1])
    begins = [n for n, (name, _, _) in enumerate(ordered) if first in name]
    gaps = []
    for begin in begins[1:]:
        last = begin
        while last > 0 and "mem" in ordered[last - 1][0].lower():
            last -= 1
        gaps.append(sum(max(0.0, after[1] - before[2]) for before, after in zip(ordered[last - 1 : begin], ordered[last : begin + 1])))
    return statistics.median(gaps) if gaps else 0.0


def measure_decode(work: Workload, model: LoadedModel) -> dict[str, object]:
    """The measured fields of a row of results. Raises CannotCapture where no graph runs the method, OutOfMemoryError where the batch does not fit."""
    bench = DecodeBench(work, model)
    measured = bench.measure()
    return {"resolved": {name: _plain(value) for name, value in bench.values.items()}, "dtype": str(model.dtype), **measured.fields()}


def _plain(value: Value | object) -> str:
    return "{" + ", ".join(map(str, sorted(value))) + "}" if isinstance(value, frozenset | set) else str(value)
