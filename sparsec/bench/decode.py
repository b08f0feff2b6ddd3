"""Decode throughput: repetitions of 32 warm-up steps and a window of 256 with the whole batch resident, synchronised only at the window's ends."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from sparsec_runtime.cache import CacheManager
from sparsec_runtime.gpu.graphs import DecodeGraphs
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.step import StepBatch

from sparsec.bench.floor import floor_of
from sparsec.bench.synthetic import counts_after_prompt, fill_pools, open_after_prompt, shuffle_pages
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

SLACK_PAGES = 2  # of each request, beyond its tokens


@dataclass(frozen=True, slots=True)
class Workload:
    method: str
    params: Mapping[str, object]
    context: int
    batch: int
    repetitions: int = 3
    warm_up: int = 32
    steps: int = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """ms_per_step: median of the repetitions; each: all of them. host_ms: what the host spends on a step.

    kernels: of one captured step; profile: (kernel, launches, microseconds in all) of one replay.
    """

    ms_per_step: float
    each: tuple[float, ...]
    tok_s: float
    floor_ms: float
    ratio: float
    kv_bytes_per_request: int
    state_bytes_per_request: int
    peak_bytes: int
    host_ms: float
    bulk_steps: int
    kernels: int
    profile: tuple[tuple[str, int, float], ...]


def measure_decode(work: Workload, model: LoadedModel) -> dict[str, object]:
    """One row of results."""
    compilation = Compilation.load(work.method, params=dict(work.params), model=from_shape(model.shape))
    manager, tokens = _manager(load_manager(compilation), work, model, compilation.dynamic_params)
    torch.cuda.reset_peak_memory_stats()
    params = manager.resolve_params(compilation.dynamic_params, prompt_tokens=work.context)
    graphs = DecodeGraphs(model, manager, pool_tokens=tokens, tokens=_longest(work))
    fill_pools(manager)
    shuffle_pages(manager)
    _repetition(graphs, params, work, min(160, work.steps))  # discarded: kernels compile, pages settle
    profile = _profile(graphs, params, work)
    runs = [_repetition(graphs, params, work, work.steps) for _ in range(work.repetitions)]
    each = [run["ms"] for run in runs]
    milliseconds = statistics.median(each)
    last = runs[-1]
    measured = Measured(
        round(milliseconds, 4), tuple(round(value, 4) for value in each), round(work.batch / milliseconds * 1e3, 1), round(last["floor"], 3),
        round(milliseconds / last["floor"], 3), last["kv"], last["state"], torch.cuda.max_memory_allocated(), round(last["host"], 3),
        last["bulk"], sum(count for _, count, _ in profile), tuple(profile),
    )  # fmt: skip
    return {
        "method": work.method, "params": {key: str(value) for key, value in {**compilation.static_values, **params}.items()},
        "context": work.context, "batch": work.batch, "shape": model.shape.name, "dtype": str(model.dtype), "fill": "synthetic", **asdict(measured),
    }  # fmt: skip


def _longest(work: Workload) -> int:
    return work.context + work.warm_up + work.steps + 1


def _manager(method: type[CacheManager], work: Workload, model: LoadedModel, given: Mapping[str, object]) -> tuple[CacheManager, int]:
    """Pools that hold the batch at its length after the prompt, and no more."""
    probe = method(model.shape, model.rope, model.dtype, "meta", pool_tokens=64, max_requests=1)
    params = probe.resolve_params(given, prompt_tokens=work.context)
    held = max(counts.length for counts in counts_after_prompt(probe, params, work.context)) + work.warm_up + work.steps
    page = probe.storage.page_size
    tokens = work.batch * (-(-held // page) + SLACK_PAGES) * page
    return method(model.shape, model.rope, model.dtype, model.device, pool_tokens=tokens, max_requests=work.batch), tokens


def _repetition(graphs: DecodeGraphs, params: Mapping[str, object], work: Workload, steps: int) -> dict[str, float]:
    manager = graphs.manager
    handles = tuple(open_after_prompt(manager, f"row {row}", params, work.context) for row in range(work.batch))
    sequences = [manager.sequence(handle) for handle in handles]
    bulk = graphs.bulk_steps
    ids = torch.randint(0, graphs.model.shape.vocab, (work.batch,)).tolist()
    for step in range(work.warm_up):
        _step(graphs, handles, step, ids if step == 0 else None)
    torch.cuda.synchronize()
    floor = floor_of(graphs.model, manager, sequences).milliseconds
    begin = time.perf_counter()
    host = 0.0
    for step in range(steps):
        before = time.perf_counter()
        _step(graphs, handles, work.warm_up + step, None)
        host += time.perf_counter() - before
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    held = manager.bytes(handles[0])
    found = {
        "ms": seconds / steps * 1e3, "floor": floor, "host": host / steps * 1e3, "kv": held.kv, "state": held.state, "bulk": graphs.bulk_steps - bulk,
    }  # fmt: skip
    for handle in handles:
        manager.close(handle)
    return found


def _profile(graphs: DecodeGraphs, params: Mapping[str, object], work: Workload) -> list[tuple[str, int, float]]:
    """One replay at the lengths after the prompt, by kernel."""
    from torch.profiler import ProfilerActivity, profile

    manager = graphs.manager
    handles = tuple(open_after_prompt(manager, f"row {row}", params, work.context) for row in range(work.batch))
    for step in range(3):
        _step(graphs, handles, step, [7] * work.batch if step == 0 else None)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        graphs.replay(work.batch)
        torch.cuda.synchronize()
    for handle in handles:
        manager.close(handle)
    rows = [(row.key[:60], row.count, round(row.self_device_time_total, 1)) for row in found.key_averages()]
    return sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])


def _step(graphs: DecodeGraphs, handles: tuple[int, ...], step: int, ids: list[int] | None) -> None:
    graphs.begin_step(StepBatch(handles, 1, "decode", True, (step,) * len(handles)))
    graphs.run(ids)
    graphs.commit_step()
