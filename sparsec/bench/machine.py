"""What a row of results says about where it was measured."""

from __future__ import annotations

import os
import subprocess

import torch
import triton


def facts(run: str, command: str) -> dict[str, str]:
    """gpu, versions, commit (from $COMMIT where there is no repository), command, run."""
    return {
        "run": run, "commit": os.environ.get("COMMIT") or _commit(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "command": command,
    }  # fmt: skip


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
