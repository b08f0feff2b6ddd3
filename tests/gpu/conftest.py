"""Everything here needs a CUDA device and is skipped without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

for shared in ("runtime", "golden"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / shared))


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
