"""Rows of prompt chunks turned and stored by the compiled kernel, against torch in fp32 of the same values."""

from __future__ import annotations

import copy

import pytest
import torch
from chunk_rows import LAYOUTS, Case, written

CUDA = torch.device("cuda")
TOLERANCE = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6}  # one rounding of what fp32 computes
CASES = [Case(layout, channels=128, turning=128, group=4) for layout in LAYOUTS] + [
    Case(channels=64, turning=64, group=1), Case(channels=80, turning=80, fused=True), Case("head", channels=96, turning=96), Case(channels=256, turning=256, heads=1, group=16),
    Case(channels=128, turning=64, fused=True), Case(chunks=(16, 16, 32), channels=128, turning=128),
]  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_those_that_torch_stores(case, dtype):
    found = written(case, case.manager(CUDA, dtype), by_kernel=True)
    wanted = written(case, case.manager(CUDA, torch.float32), by_kernel=False, rounded=dtype)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=TOLERANCE[dtype], atol=1e-5)


def test_pages_of_others_and_the_null_page_stay_as_they_were():
    case = Case(channels=128, turning=128)
    made = case.manager(CUDA, torch.bfloat16)
    arrays = [store.rows.data for store in made.storage.stores.values()]
    for data in arrays:
        data.fill_(7.0)
    before = copy.deepcopy(arrays)
    written(case, made, by_kernel=True)
    used = next(iter(made._sequences.values())).tables
    pages = sorted(page for table in used.values() for page in table.pages[0].tolist() if page)
    for data, old in zip(arrays, before):
        mine = torch.zeros(data.shape[1] // case.heads, dtype=torch.bool, device=CUDA)
        mine[pages] = True
        others = ~mine.repeat_interleave(case.heads)
        assert torch.equal(data[:, others], old[:, others]) and not torch.equal(data, old)
