"""Golden cases on a CUDA device: what the methods' own authors' code keeps, selects, encodes and returns, by torch and by the decode kernels.

Tolerances are those of the CPU (tests/golden/comparing.py): fp32 is exact here too.
"""

from __future__ import annotations

import pytest
from cases import NAMES, WITHOUT_KERNELS, call_of, entries_compared, load, on_kernels, run

from sparsec.replay import ReplayError


@pytest.mark.parametrize("name", NAMES)
def test_torch_on_the_device_gives_what_the_authors_code_gives(name: str) -> None:
    assert entries_compared(name, "torch", "cuda") > 0, "nothing was compared"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_KERNELS])
def test_kernels_give_what_the_authors_code_gives(name: str) -> None:
    assert entries_compared(name, "triton", "cuda") > 0, "nothing was compared"


@pytest.mark.parametrize(("name", "hook"), WITHOUT_KERNELS.items())
def test_a_case_without_kernels_is_refused_with_the_hook(name: str, hook: str) -> None:
    case = load(name)
    with pytest.raises(ReplayError, match=f"no decode kernels: .*{hook}"):
        run(case, on_kernels(call_of(case, name)), "triton", None, "cuda")
