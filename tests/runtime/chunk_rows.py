"""Rows of prompt chunks that a kernel turns and stores: what must come of them, on either device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from caching import Shape
from sparsec_runtime.abi import CacheManager, Codec, Layout, ZoneLayout
from sparsec_runtime.cache import StepBatch
from sparsec_runtime.gpu.chunk import write_chunk_rows
from sparsec_runtime.resident import Resident
from sparsec_runtime.rope import Rope
from sparsec_runtime.writing import write_new_rows
from torch import Tensor

CODES = {"K": Codec(4, "c", 8), "V": Codec(4, "c", 8)}
LAYOUTS = {
    "shared": Layout(), "layer": Layout(scope="layer", page_size=4), "head": Layout(scope="head", evicts=True), "two zones": Layout(zones=(ZoneLayout("new"), ZoneLayout("old", CODES))),
    "apart": Layout(zones=(ZoneLayout("new"), ZoneLayout("old", CODES)), split=True, page_size=8),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Tokens of the chunks of a prompt, heads, channels and how many of them turn."""

    layout: str = "shared"
    chunks: tuple[int, ...] = (5, 33, 1, 16)
    heads: int = 2
    group: int = 3
    channels: int = 16
    turning: int = 16
    fused: bool = False  # q, k and v are slices of one tensor

    def manager(self, device: torch.device, dtype: torch.dtype) -> CacheManager:
        shape = Shape(layers=2, q_heads=self.heads * self.group, kv_heads=self.heads, head_dim=self.channels)
        kind = type("Kind", (CacheManager,), {"LAYOUT": LAYOUTS[self.layout]})
        made = kind(shape, replace(Rope.plain(10000.0, self.turning), scaling=1.5), dtype, device, pool_tokens=128, chunk=64)
        for stream in made.storage.streams.values():
            stream.pool.shuffle(np.random.default_rng(3))
        return made


def written(case: Case, made: CacheManager, by_kernel: bool, rounded: torch.dtype | None = None) -> list[Tensor]:
    """Queries of each chunk and layer, and K, V and positions of each layer at the end, in fp32 on the CPU. rounded: inputs are rounded to it first."""
    handle, found = made.open("one", {}), []
    generator = torch.Generator().manual_seed(7)
    widths = [case.heads * case.group, case.heads, case.heads]
    for number, tokens in enumerate(case.chunks):
        made.begin_step(StepBatch((handle,), tokens, "prefill", number + 1 == len(case.chunks), (0,)))
        for layer in range(2):
            rows = torch.randn(1, tokens, sum(widths), case.channels, generator=generator).to(rounded or made.storage.dtype).to(made.device, made.storage.dtype)
            q, k, v = rows.split(widths, 2) if case.fused else (part.contiguous() for part in rows.split(widths, 2))
            resident = made._residents[layer] = Resident(made.storage, made._active_step(), layer)
            found.append(write_new_rows(resident, q, k, v, write_chunk_rows if by_kernel else None))
        if number + 1 < len(case.chunks):
            made.finish()
            made.commit_step()
    for layer in range(2):
        resident = made._residents[layer]
        found += [resident.stored("K"), resident.stored("V"), resident.pos]
    return [value.float().cpu() for value in found]
