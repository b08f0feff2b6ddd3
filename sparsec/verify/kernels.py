"""Runs a case's sequence on the method's decode kernels, by replay, and reads the trace as steps that the oracle's can be held against."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsec.pipeline import Compilation
from sparsec.reference.values import Scalar
from sparsec.replay import ReplayRequest
from sparsec.replay_torch import run_batch
from sparsec.trace import Recorded, Trace
from sparsec.verify.oracle import Run, Step
from sparsec.verify.traces import ROPE_THETA, Inputs
from sparsec_runtime.layout import PARTS
from sparsec_runtime.rope import Rope


def run_on_kernels(compilation: Compilation, params: Mapping[str, Scalar], inputs: Inputs, chunk: int | None) -> Run:
    """Alone, on CUDA where there is one, else in Triton's interpreter; raises NoKernels where the method has none."""
    from sparsec.replay_triton import KernelDriver

    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = (part.to(device) for part in (inputs.q, inputs.k, inputs.v))
    zones = tuple(f"{zone.name}.rows" for zone in compilation.plan.layout.zones)
    rope = Rope.plain(ROPE_THETA, k.shape[-1])
    request = ReplayRequest(q, k, v, inputs.prompt_len, chunk, 0, False, rope, zones)
    trace = run_batch(compilation, [(params, request)], driver=KernelDriver)[0]
    return Run([_step(trace, step, inputs.prompt_len + step) for step in range(inputs.new + 1)])


def _step(trace: Trace, step: int, tokens: int) -> Step:
    """attended and out are of the step's last query alone; states are left out, since kernels keep them only where a hook reads them."""
    kept = [torch.stack([_spread(rows, tokens) for rows in heads]) for heads in trace.kept[step]]
    attended = [torch.stack([_spread(rows, tokens) for rows in heads])[None] for heads in trace.attended[step]]
    outs = list(trace.output[:, tokens - 1, None])
    zones = [_zones([trace.recorded[name][step][layer] for name in trace.recorded], heads, tokens) for layer, heads in enumerate(trace.kept[step])]
    return Step(kept, attended, outs, zones, [{} for _ in kept])


def _spread(rows: Tensor, tokens: int) -> Tensor:
    return torch.zeros(tokens, dtype=torch.bool).index_fill(0, rows, True)


def _zones(counts: list[Recorded | None], heads: list[Tensor], tokens: int) -> Tensor:
    """Zone index [part, kv_head, token] of rows that lie in runs, those of the last zone first; counts: of each zone, its K rows and its V rows."""
    zones = torch.zeros(len(PARTS), len(heads), tokens, dtype=torch.int64)
    for part in range(len(PARTS)):
        sizes = [int(recorded.values[part]) for recorded in counts if recorded is not None]
        for head, rows in enumerate(heads):
            first = 0
            for zone in reversed(range(len(sizes))):
                zones[part, head, rows[first : first + sizes[zone]]] = zone
                first += sizes[zone]
    return zones
