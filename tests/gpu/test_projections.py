"""Projections of few rows, compiled, by the tiles that are committed: against plain ones in fp64 on the shapes that they were measured on."""

from __future__ import annotations

import pytest
import torch
from projections import assert_adds_to_the_residual, assert_gates, assert_projects
from sparsec_runtime.gpu.tuning import _HOPPER, Tuning

ROWS = (1, 2, 8, 16, 22, 64)
QKV, OUT, GATE_UP, DOWN = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)
DTYPES = (torch.bfloat16, torch.float16)
TUNING = Tuning(132, projections=_HOPPER)
SUMS = 5e-4  # tensor cores cut sums off instead of rounding them; parts that were rounded to sixteen bits are further off


def served(shape):
    """The row counts that the shape has tiles for; the tiles need the shared memory of the device that they were measured on."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the tiles of another device")
    return [rows for rows in ROWS if TUNING.tiles_of(torch.empty(shape, dtype=torch.float16, device="meta"), rows) is not None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [QKV, DOWN], ids=str)
def test_a_projection_with_bias_or_without_equals_a_plain_one(shape, dtype):
    rows = served(shape)
    assert rows[:4] == [1, 2, 8, 16]
    for count in rows:
        assert_projects(TUNING, count, shape, dtype, "cuda", sums=SUMS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [OUT, DOWN], ids=str)
def test_the_next_norm_adds_up_the_parts_of_the_depth(shape, dtype):
    rows = served(shape)
    assert rows == list(ROWS)
    for count in rows:
        assert TUNING.tiles_of(torch.empty(shape, dtype=dtype, device="meta"), count).splits > 1
        assert_adds_to_the_residual(TUNING, count, shape, dtype, "cuda", sums=SUMS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gate_and_up_equal_plain_ones(dtype):
    rows = served(GATE_UP)
    assert rows == list(ROWS)
    for count in rows:
        assert_gates(TUNING, count, GATE_UP, dtype, "cuda", sums=SUMS)
