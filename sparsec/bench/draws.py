"""What it takes to choose a batch's ids inside a graph, by how its rows sample: random logits, the kernels of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
from sparsec_runtime.gpu.row_sampling import RowSampling, draws_of
from sparsec_runtime.gpu.sampling import GREEDY_PART, SampleBuffers, launch_greedy
from sparsec_runtime.sampler import SamplingParams
from torch import Tensor

from sparsec.bench.ceiling import replayed_seconds

REPLAYS = 50
SPREAD = 2.0


def random_logits(rows: int, vocab: int, device: torch.device, spread: float = SPREAD) -> Tensor:
    """bf16 [row, vocab], normal, of a standard deviation; always the same ones."""
    made = torch.randn(rows, vocab, device=device, generator=torch.Generator(device).manual_seed(0))
    return (made * spread).bfloat16()


def draw_seconds(logits: Tensor, params: Mapping[str, float]) -> float:
    """Of one replay in which every row of `logits` [row, vocab] samples by `params`, fields of SamplingParams; none: the kernels of a greedy batch."""
    return replayed_seconds(step_of(logits, params), REPLAYS)


def kernel_seconds(logits: Tensor, params: Mapping[str, float]) -> dict[str, tuple[float, int]]:
    """Of each kernel of such a step by its name, the longest first: seconds on the device in one step, and launches. Adds up to less than draw_seconds,
    which has what lies between kernels."""
    run, steps = step_of(logits, params), 10
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            run()
        torch.cuda.synchronize()
    found = {event.key: (event.self_device_time_total * 1e-6 / steps, event.count // steps) for event in profile.key_averages()}
    return dict(sorted(((name, time) for name, time in found.items() if time[0] > 0), key=lambda one: -one[1][0]))


def step_of(logits: Tensor, params: Mapping[str, float]) -> Callable[[], None]:
    """The kernels of a step in which every row samples by `params`."""
    ids = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    return drawn(logits, ids, params) if params else greedy(logits, ids)


def greedy(logits: Tensor, ids: Tensor) -> Callable[[], None]:
    """The kernels of a step whose rows are all greedy; ids [row] int64."""
    rows, vocab = logits.shape
    best, best_id = (torch.empty((rows, triton.cdiv(vocab, GREEDY_PART)), dtype=dtype, device=logits.device) for dtype in (torch.float32, torch.int32))
    return lambda: launch_greedy(logits, best, best_id, ids, GREEDY_PART, {})


def drawn(logits: Tensor, ids: Tensor, params: Mapping[str, float]) -> Callable[[], None]:
    """The kernels of a step in which rows sample, each with a prompt of 2,000 ids and 100 generated ones."""
    rows, vocab = logits.shape
    asked = [RowSampling(SamplingParams(seed=n, **params), range(n, n + 2000), range(100)) for n in range(rows)]
    buffers = SampleBuffers(rows, vocab, logits.device)
    buffers.set(asked)
    return lambda: buffers.launch(logits, ids, draws_of(asked) == "penalised", {})
