"""The mass of a prompt chunk in interpreter mode: groups that are no power of two, that are wider than a tile, rare widths, and queries that fill no run."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from sparsec_runtime.gpu.prefill import column_mass
from test_triton_prefill import chunk, plain


@pytest.mark.parametrize("over_g", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    ("queries", "prefix", "heads", "group", "channels"),
    [(7, 40, 2, 5, 64), (8, 0, 1, 7, 16), (9, 3, 2, 40, 16), (40, 33, 3, 3, 20), (65, 0, 2, 12, 24), (3, 130, 1, 1, 80), (96, 96, 1, 2, 16)],
)
def test_the_mass_is_the_sum_of_the_probabilities(over_g, queries, prefix, heads, group, channels):
    q, keys, values = chunk(queries, prefix + queries, heads, group, channels)
    _, probs, lse = plain(q, keys, values, 0.2)
    found = column_mass(q, keys, lse.contiguous(), 0.2, over_g)
    expected = {"sum": probs.sum(3), "mean": probs.mean(3), "max": probs.amax(3)}[over_g].sum(1)
    assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)


def test_the_queries_of_one_head_do_not_reach_another():
    q, keys, values = chunk(5, 20, 2, 3, 16)
    _, _, lse = plain(q, keys, values, 0.2)
    alone = column_mass(q, keys, lse.contiguous(), 0.2, "max")
    q[:, :, 1] = float("nan")
    assert torch.equal(column_mass(q, keys, lse.contiguous(), 0.2, "max")[:, 0], alone[:, 0])
