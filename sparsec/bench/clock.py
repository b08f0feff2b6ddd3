"""Where the host and the device meet."""

from __future__ import annotations

import torch


def wait_for(device: torch.device) -> None:
    """Until all that was launched there has ended; a CPU has nothing in flight."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
