"""The memory bandwidth that a device reaches: the best of an eager copy, a Triton copy and a Triton reduction that only reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

BYTES = 4 * 2**30  # of one buffer
REPEATS = 10
BLOCK = 8192


@triton.jit
def copy_blocks(source, target, n, BLOCK: tl.constexpr):
    """target = source, int32 [n]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < n), mask=at < n)


@triton.jit
def add_blocks(source, sums, n, BLOCK: tl.constexpr):
    """sums [block] of source, int32 [n]: what wraps is no matter, only the reads are."""
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + block, tl.sum(tl.load(source + at, mask=at < n, other=0), axis=0))


def launch_copy(source: Tensor, target: Tensor) -> None:
    copy_blocks[(triton.cdiv(source.numel(), BLOCK),)](source, target, source.numel(), BLOCK=BLOCK, num_warps=8)


def launch_sums(source: Tensor, sums: Tensor) -> None:
    add_blocks[(triton.cdiv(source.numel(), BLOCK),)](source, sums, source.numel(), BLOCK=BLOCK, num_warps=8)


def ceiling(device: torch.device) -> dict[str, float]:
    """Bytes per second by how they were moved, and the `best` of them."""
    source = torch.ones(BYTES // 4, dtype=torch.int32, device=device)
    target, sums = torch.empty_like(source), torch.empty(triton.cdiv(source.numel(), BLOCK), dtype=torch.int32, device=device)
    found = {
        "eager copy": 2 * BYTES / seconds(lambda: target.copy_(source)),
        "triton copy": 2 * BYTES / seconds(lambda: launch_copy(source, target)),
        "triton read": BYTES / seconds(lambda: launch_sums(source, sums)),
    }
    return {**found, "best": max(found.values())}


def seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Of one run on the device: the median of repeats after two that are discarded, launched one after another."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 3)]
    for mark in marks[:-1]:
        mark.record()
        run()
    marks[-1].record()
    torch.cuda.synchronize()
    times = sorted(one.elapsed_time(other) for one, other in zip(marks[2:], marks[3:]))
    return times[len(times) // 2] / 1e3


def replayed_seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """The same of a captured graph: without what the host spends on launches."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return seconds(graph.replay, repeats)
