"""What a row of results says about where and how it was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch
import transformers
import triton


def facts(run: str, command: str) -> dict[str, object]:
    """run, commit, gpu, versions, command."""
    return {"run": run, "commit": commit(), "gpu": torch.cuda.get_device_name(), "versions": versions(), "command": command}


def versions() -> dict[str, str]:
    return {
        "torch": torch.__version__, "triton": triton.__version__, "transformers": transformers.__version__, "python": platform.python_version(),
    }  # fmt: skip


def commit(directory: Path | None = None) -> str:
    """The checkout's commit, "-dirty" behind it where tracked files differ; $COMMIT where it is set (a machine without the repository)."""
    given = os.environ.get("COMMIT")
    if given:
        return given
    where = directory or Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    found = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
