"""Copies between host and device that wait for nothing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def send(target: Tensor, values: np.ndarray) -> None:
    """Host values to a tensor of the device: pinned memory is not used again before its copy is done."""
    source = torch.from_numpy(np.ascontiguousarray(values))
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)
