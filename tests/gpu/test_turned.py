"""Attention that counts positions anew, compiled: rounded dtypes, tiles of 64 rows, rows of many chunks; whole requests against the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from against_oracle import Batch, assert_kernels_equal_oracle
from sparsec_runtime.gpu.tuning import Tuning
from turned import Case, assert_attends_at_ranks

LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 2047, 2048, 3000)
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 5e-4}  # fp32: angles of some thousand ranks are rounded to 2^-24 of themselves
SIZED = {"chunk": 1024, "tile": 64}


def sizes_of(dim, dtype):
    """As gpu/tuning.py has them: tiles of no more bytes than those that were measured."""
    tile = Tuning(132).weighing.of_rows(dim * dtype.itemsize).tile
    return {"chunk": 1024, "tile": min(32, tile) if dtype == torch.float32 else tile}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("heads", "group", "dim", "rotary", "scaling"),
    [(2, 4, 128, None, 1.0), (3, 1, 64, None, 1.0), (2, 3, 80, None, 1.0), (1, 2, 80, 32, 1.0), (1, 2, 64, 32, 1.2), (1, 16, 96, None, 1.0), (1, 8, 256, None, 1.0)],
)  # fmt: skip
def test_keys_are_read_rotated_at_their_ranks(heads, group, dim, rotary, scaling, dtype):
    case = Case(LENGTHS, heads, group, dim, rotary, scaling, dtype=dtype, **sizes_of(dim, dtype))
    assert_attends_at_ranks(case, "cuda", TOLERANCE[dtype])
    assert_attends_at_ranks(replace(case, tells=True), "cuda", TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_ranks_of_a_long_row(dtype):
    assert_attends_at_ranks(Case((40000, 17000, 3), heads=1, group=4, dim=128, dtype=dtype, **SIZED), "cuda", TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_heads_of_different_lengths_count_for_themselves(dtype):
    assert_attends_at_ranks(Case((1, 3000, 0, 17, 640, 64), heads=2, group=4, dim=128, per_head=True, dtype=dtype, **SIZED), "cuda", TOLERANCE[dtype])


RANKS = {"budget": 24, "recent": 8, "interval": 3, "positions": "cache"}


@pytest.mark.parametrize(
    ("more", "dtype"), [({}, torch.float32), ({"reduce": "max", "interval": 1}, torch.float32), ({}, torch.bfloat16), ({"reduce": "sum"}, torch.float16)],
    ids=str,
)  # fmt: skip
def test_kernels_keep_read_and_return_what_the_oracle_says(more, dtype):
    assert_kernels_equal_oracle(Batch("h2o", RANKS | more, group=4, channels=128, theta=10000.0), "cuda", dtype)
