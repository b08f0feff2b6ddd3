"""What it takes to choose a batch's ids inside a graph, by how its rows sample: random logits, the kernels of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
from sparsec_runtime.gpu.kernels.block import best_of_part, best_of_row
from sparsec_runtime.gpu.row_sampling import RowSampling, draws_of
from sparsec_runtime.gpu.sampling import SampleBuffers
from sparsec_runtime.sampler import SamplingParams
from torch import Tensor

from sparsec.bench.ceiling import replayed_seconds

PART = 2048
REPLAYS = 50
SPREAD = 2.0


def random_logits(rows: int, vocab: int, device: torch.device, spread: float = SPREAD) -> Tensor:
    """bf16 [row, vocab], normal, of a standard deviation; always the same ones."""
    made = torch.randn(rows, vocab, device=device, generator=torch.Generator(device).manual_seed(0))
    return (made * spread).bfloat16()


def draw_seconds(logits: Tensor, params: Mapping[str, float]) -> float:
    """Of one replay in which every row of `logits` [row, vocab] samples by `params`, fields of SamplingParams; none: the kernels of a greedy batch."""
    ids = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    run = drawn(logits, ids, params) if params else greedy(logits, ids)
    return replayed_seconds(run, REPLAYS)


def greedy(logits: Tensor, ids: Tensor) -> Callable[[], None]:
    """The two kernels of a step whose rows are all greedy (runtime/sparsec_runtime/gpu/forward.py); ids [row] int64."""
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, PART)
    best, best_id = (torch.empty((rows, parts), dtype=dtype, device=logits.device) for dtype in (torch.float32, torch.int32))

    def run() -> None:
        best_of_part[(rows, parts)](logits, best, best_id, vocab, parts, BLOCK=PART)
        best_of_row[(rows,)](best, best_id, ids, parts, BLOCK=triton.next_power_of_2(parts))

    return run


def drawn(logits: Tensor, ids: Tensor, params: Mapping[str, float]) -> Callable[[], None]:
    """The kernels of a step in which rows sample, each with a prompt of 2,000 ids and 100 generated ones."""
    rows, vocab = logits.shape
    asked = [RowSampling(SamplingParams(seed=n, **params), range(n, n + 2000), range(100)) for n in range(rows)]
    buffers = SampleBuffers(rows, vocab, logits.device)
    buffers.set(asked)
    return lambda: buffers.launch(logits, ids, draws_of(asked) == "penalised", {})
