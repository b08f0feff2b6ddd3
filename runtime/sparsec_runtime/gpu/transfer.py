"""Copies from the host to a device that wait for nothing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def send(target: Tensor, values: np.ndarray) -> None:
    """Host values to a tensor of the device: pinned memory is not used again before its copy is done."""
    target.copy_(_source(values, target.device), non_blocking=True)


def sent(values: np.ndarray, device: torch.device) -> Tensor:
    """The same to a new tensor."""
    return _source(values, device).to(device, non_blocking=True)


def _source(values: np.ndarray, device: torch.device) -> Tensor:
    source = torch.from_numpy(np.ascontiguousarray(values))
    return source.pin_memory() if device.type == "cuda" else source
