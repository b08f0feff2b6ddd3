"""Block sizes by device: the few that were measured (benchmarks/kernels.py on an H200), and what other devices get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .blocks import pow2


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """chunk: tokens of one work item of a long row (kernels/tools.py, chunk_sizes), tile: of one step of it; programs: of the persistent grid, per multiprocessor.

    registers: of a thread, at most, so that a multiprocessor holds one more program; None: as many as the compiler takes.
    """

    chunk: int
    tile: int
    warps: int
    stages: int
    programs: int
    registers: int | None = None

    @property
    def launch(self) -> dict[str, int]:
        """Options of a launch."""
        return {"num_warps": self.warps} if self.registers is None else {"num_warps": self.warps, "maxnreg": self.registers}

    def of_rows(self, row_bytes: int) -> AttentionSizes:
        """For K of so many bytes a row: tiles of no more bytes than those that were measured, at 256."""
        return replace(self, tile=max(16, self.tile * 256 // pow2(row_bytes))) if row_bytes > 256 else self


@dataclass(frozen=True, slots=True)
class ZoneSizes:
    """Attention over two zones. chunk: tokens of an item of the older zone, rest: of the others."""

    chunk: int
    rest: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True, slots=True)
class ProjectionTiles:
    """outputs: of one program; depth: channels per step; splits: of the depth, where the next norm can add them up."""

    outputs: int
    depth: int
    stages: int
    warps: int
    splits: int = 1


@dataclass(frozen=True, slots=True)
class Tuning:
    """whole, picked: attention over all pages of a row, or over those that a method picked; ragged: over all pages where heads hold different counts;
    weighing: where it also writes its logits or turns keys. bounds: of pages' bounds, chunk and tile in units (a page of one head); projections: by (width, depth), for up to so many rows each."""

    multiprocessors: int
    whole: AttentionSizes = AttentionSizes(chunk=2048, tile=64, warps=4, stages=2, programs=8)
    ragged: AttentionSizes = AttentionSizes(chunk=2048, tile=64, warps=4, stages=2, programs=8, registers=128)
    weighing: AttentionSizes = AttentionSizes(chunk=2048, tile=64, warps=2, stages=3, programs=8)
    bounds: AttentionSizes = AttentionSizes(chunk=256, tile=64, warps=4, stages=3, programs=2)
    picked: AttentionSizes = AttentionSizes(chunk=512, tile=64, warps=2, stages=3, programs=4)
    zones: ZoneSizes = ZoneSizes(chunk=1024, rest=128, warps=1, stages=3, programs=16)
    chained: bool = False  # measured both faster and slower: off until that is understood
    assembly: bool = True  # codes come out of words by PTX
    projections: Mapping[tuple[int, int], Sequence[tuple[int, ProjectionTiles]]] = field(default_factory=dict)

    def among(self, size: AttentionSizes, units: int) -> AttentionSizes:
        """units: rows of the batch times KV heads; where they are few, long items leave multiprocessors without one."""
        return replace(size, chunk=size.chunk // 2) if units <= self.multiprocessors // 4 else size

    def bound_pages(self, heads: int, dtype: torch.dtype) -> tuple[int, int]:
        """Pages of an item and of a step of it, where a step reads them for all KV heads; fewer in fp32, whose products take no tensor core but registers."""
        tile = max(1, (min(16, self.bounds.tile) if dtype == torch.float32 else self.bounds.tile) // pow2(heads))
        return tile * (self.bounds.chunk // self.bounds.tile), tile

    def tiles_of(self, weight: Tensor, rows: int) -> ProjectionTiles | None:
        """None: the vendor's library is as fast, or was not measured."""
        measured = self.projections.get(tuple(weight.shape), ()) if weight.element_size() == 2 else ()
        return next((tiles for most, tiles in measured if rows <= most), None)


_WHOLE = {  # by bytes of a row of K, where others than the default are faster: benchmarks/kernels.py heads
    128: AttentionSizes(chunk=2048, tile=16, warps=1, stages=2, programs=16),
    160: AttentionSizes(chunk=2048, tile=64, warps=2, stages=2, programs=8),
}
_INTERPRETER = AttentionSizes(chunk=32, tile=16, warps=4, stages=1, programs=1)
_ZONES = ZoneSizes(chunk=1024, rest=32, warps=4, stages=1, programs=1)
_HOPPER = {  # benchmarks/kernels.py tiles, at 8, 22 and 64 rows
    (6144, 4096): ((16, ProjectionTiles(64, 256, 4, 4)),),
    (4096, 4096): ((64, ProjectionTiles(64, 128, 3, 4, splits=4)),),
    (28672, 4096): ((16, ProjectionTiles(32, 128, 3, 4)), (32, ProjectionTiles(64, 128, 3, 4)), (64, ProjectionTiles(64, 64, 3, 4))),
    (4096, 14336): ((64, ProjectionTiles(64, 128, 3, 4, splits=4)),),
}


def tuning_of(device: torch.device, row_bytes: int = 256) -> Tuning:
    """row_bytes: of K of one token and head."""
    if device.type != "cuda":
        return Tuning(3, *[_INTERPRETER] * 4, picked=_INTERPRETER, zones=_ZONES, assembly=False)  # so few that items outnumber programs
    count = torch.cuda.get_device_properties(device).multi_processor_count
    hopper = torch.cuda.get_device_capability(device)[0] == 9
    made = Tuning(count, projections=_HOPPER if hopper else {}, assembly=torch.version.hip is None)
    whole = _WHOLE.get(row_bytes, made.whole.of_rows(row_bytes))
    ragged = made.ragged if row_bytes == 256 and torch.version.hip is None else whole
    return replace(made, whole=whole, ragged=ragged, weighing=made.weighing.of_rows(row_bytes), picked=made.picked.of_rows(row_bytes))
