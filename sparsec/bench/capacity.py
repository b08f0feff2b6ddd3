"""The largest batch of one context that a device holds: found by the host's arithmetic of pages, then measured.

Residents are compressed prompts with room for new tokens; prompts are computed one at a time, so one of them stands at its peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from sparsec_runtime.cache import CacheManager
from sparsec_runtime.gpu.graphs import BUCKETS
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.params import Value

from sparsec.bench.decode import DecodeBench
from sparsec.bench.room import DoesNotFit, bytes_of, probe_of, prompt_pages, resident_pages
from sparsec.bench.workload import Workload
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

NEW_TOKENS = 2048  # reserved for each resident
WORKSPACE = 10 * 2**30  # bytes kept free: activations of a chunk, rows gathered for it, buffers of a graph
COMPUTED = 2  # residents whose prompts are computed; the others are made up


def largest_batch(probe: CacheManager, params: Mapping[str, Value], work: Workload, new: int, free: int) -> int:
    """Residents whose pools fit `free` bytes, at most as many as a graph decodes; 0 where not even one does."""

    each = resident_pages(probe, params, work.context, new)
    more = prompt_pages(probe, params, work, each)

    def fits(batch: int) -> bool:
        return bytes_of(probe, {name: batch * count + more[name] for name, count in each.items()}) <= free

    low, high = 0, BUCKETS[-1] + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def measure_capacity(work: Workload, model: LoadedModel, new: int = NEW_TOKENS) -> dict[str, object]:
    """The measured fields of a row; the batch of `work` is not read."""
    compilation = Compilation.load(work.method, params=dict(work.params), model=from_shape(model.shape))
    probe = probe_of(load_manager(compilation), model)
    params = probe.resolve_params(compilation.dynamic_params, prompt_tokens=work.context)
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] - WORKSPACE
    batch = largest_batch(probe, params, work, new, free)
    if batch == 0:
        raise DoesNotFit(f"not one request of {work.context} tokens fits {free / 2**30:.1f} GiB")
    bench = DecodeBench(replace(work, batch=batch, fill="prompt"), model, prompts=min(COMPUTED, batch), new=new)
    return {"residents": batch, "reserved_tokens": new, "free_bytes": free, "dtype": str(model.dtype), **bench.measure().fields()}
