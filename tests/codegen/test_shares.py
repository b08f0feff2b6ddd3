"""`apportion` has three implementations, of the oracle, the host of the graph and the runtime: one rule."""

import random

import pytest
import torch

from sparsec.dsl.names import SHARE_DIGITS
from sparsec.graph.host import apportion as of_graph
from sparsec.reference.ranking import apportion as of_oracle
from sparsec_runtime import ops
from sparsec_runtime.ops.shares import RESOLUTION


def everyone(raw: list[float], total: int) -> list[list[int]]:
    shares = torch.tensor(raw, dtype=torch.float64)
    oracle = of_oracle(shares, torch.tensor(total)).tolist()
    return [oracle, of_graph(raw, total), ops.whole_shares(raw, total), ops.apportion(shares, total).tolist()]


def test_the_compiler_and_the_runtime_have_one_resolution():
    assert RESOLUTION == SHARE_DIGITS


@pytest.mark.parametrize(
    ("raw", "total", "shares"),
    [
        ([4.999999999999999, 2.0], 7, [5, 2]),
        ([0.1 + 0.2, 0.3, 0.4], 1, [0, 0, 1]),
        ([1.3, 1.1 + 0.2, 1.4], 4, [1, 1, 2]),
        ([2.3, 2.1 + 0.2, 1.4], 7, [3, 2, 2]),
        ([0.7, 0.6999999999999999, 0.6], 2, [1, 1, 0]),
        ([0.6999999999999999, 0.7, 0.6], 1, [1, 0, 0]),
        ([3.0, 2.0], 4, [3, 1]),
        ([1.0, 1.0], 5, [3, 2]),
    ],
)
def test_remainders_that_differ_by_rounding_alone_tie_everywhere(raw, total, shares):
    assert everyone(raw, total) == [shares] * 4


def test_random_shares_are_rounded_alike_everywhere():
    draw = random.Random(0)
    for _ in range(300):
        parts = draw.choice((3, 7, 10, 16))
        raw = [draw.randrange(100) / parts + draw.choice((0.0, 1e-15, -1e-15)) for _ in range(draw.randrange(1, 9))]
        total = round(sum(raw)) + draw.randrange(-2, 3)
        found = everyone(raw, total)
        assert found == [found[0]] * 4 and sum(found[0]) == total, raw


@pytest.mark.parametrize(
    ("raw", "total", "shares"),
    [([0.5, 0.25, 0.0], 7, [3, 2, 2]), ([2.5, 2.25, 2.0], 5, [2, 2, 1]), ([2.5, 2.25, 2.0], 2, [1, 1, 0]), ([0.0, 0.0, 5.0], 2, [-1, -1, 4])],
)  # fmt: skip
def test_shares_that_do_not_add_up_are_filled_or_cut_one_by_one_and_not_scaled(raw, total, shares):
    assert everyone(raw, total) == [shares] * 4


def test_totals_far_from_the_sum_are_met_alike_everywhere():
    draw = random.Random(1)
    for _ in range(200):
        raw = [draw.random() * draw.choice((1, 20)) for _ in range(draw.randrange(1, 9))]
        total = draw.randrange(0, 120)
        found = everyone(raw, total)
        assert found == [found[0]] * 4 and sum(found[0]) == total, raw
