"""A few golden cases on the decode kernels in Triton's interpreter; tests/gpu replays all of them on a device."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from cases import WITHOUT_KERNELS, call_of, entries_compared, load, on_kernels, run

from sparsec.replay import ReplayError


@pytest.mark.parametrize("name", ["tova_kvpress_prefill_r06", "ada_snapkv_ffy0_rounding_drift", "omnikv_engine_sink_recent"])
def test_kernels_give_what_the_authors_code_gives(name: str) -> None:
    assert entries_compared(name, "triton") > 0, "nothing was compared"


@pytest.mark.parametrize(("name", "hook"), WITHOUT_KERNELS.items())
def test_a_case_without_kernels_is_refused_with_the_hook(name: str, hook: str) -> None:
    case = load(name)
    with pytest.raises(ReplayError, match=f"no decode kernels: .*{hook}"):
        run(case, on_kernels(call_of(case, name)), "triton", None)
