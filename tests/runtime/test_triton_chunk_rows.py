"""Rows of prompt chunks turned and stored by a kernel, in interpreter mode: what torch turns and stores."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from chunk_rows import LAYOUTS, Case, written
from engines import METHODS, add, drain, engine, ids_of, prompt
from sparsec_runtime.gpu.chunk import write_chunk_rows

CPU = torch.device("cpu")
CASES = [Case(layout) for layout in LAYOUTS] + [
    Case(channels=24, turning=24, heads=1, group=1), Case(channels=40, turning=16, fused=True), Case("head", channels=8, turning=6, fused=True), Case(chunks=(16,)), Case(chunks=(1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_those_that_torch_stores(case):
    wanted = written(case, case.manager(CPU, torch.float32), by_kernel=False)
    found = written(case, case.manager(CPU, torch.float32), by_kernel=True)
    assert len(found) == len(wanted) == 2 * len(case.chunks) + 6
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_a_request_gets_the_same_ids(method):
    plain, made, calls = engine(method), engine(method), []
    if made.manager.LAYOUT.position == "logical":
        made.manager.write_chunk = lambda *rows: (calls.append(rows), write_chunk_rows(*rows))[1]
    for one in (plain, made):
        for n, length in enumerate((7, 70, 33)):
            add(one, prompt(length, seed=n), 6, name=f"row {n}")
    assert [ids_of(outputs) for outputs in drain(made).values()] == [ids_of(outputs) for outputs in drain(plain).values()]
    assert bool(calls) == (made.manager.LAYOUT.position == "logical")
