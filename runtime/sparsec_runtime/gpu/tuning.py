"""Block sizes by architecture and head width: the few that were measured (benchmarks/README.md), and what the others get."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Tuning:
    """chunk: tokens of one work item of attention; picked_chunk: where a method picked the pages; programs: of the persistent grid, per multiprocessor."""

    chunk: int = 1024
    picked_chunk: int = 128
    tile: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 2
    multiprocessors: int = 132


def tuning_of(device: torch.device) -> Tuning:
    if device.type != "cuda":
        return Tuning(chunk=32, picked_chunk=16, tile=16, programs=1, multiprocessors=3)  # the interpreter: small, and items still outnumber programs
    return Tuning(multiprocessors=torch.cuda.get_device_properties(device).multi_processor_count)
