"""What the newest queries give each row, by the kernels in interpreter mode, against the softmax of a QueryBlock in torch."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import add, drain, engine, ids_of, prompt
from sparsec_runtime.attention.observe import QueryBlock
from sparsec_runtime.gpu import window as kernels
from sparsec_runtime.gpu.window import window_mass

EXACT = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr(kernels, "RUN", 64)


def block(queries: int, tokens: int, heads: int = 2, group: int = 2, channels: int = 16, rows: int = 1) -> QueryBlock:
    """The newest queries of `tokens` rows, all of them held and asked for."""
    generator = torch.Generator().manual_seed(queries * 1000 + tokens)
    q, keys = torch.randn(rows, queries, heads, group, channels, generator=generator), torch.randn(rows, heads, tokens, channels, generator=generator)
    positions = torch.arange(tokens).expand(rows, heads, tokens).contiguous()
    query_pos = torch.arange(tokens - queries, tokens).expand(rows, queries)
    return QueryBlock(q, query_pos, torch.ones((rows, queries), dtype=torch.bool), keys, row_pos=positions, scale=0.3)


def by_kernels(one: QueryBlock) -> torch.Tensor:
    return window_mass(one.Q, one.keys, one.row_pos, one.query_pos, one.query_valid, one.scale)


@pytest.mark.parametrize(("queries", "tokens"), [(1, 1), (3, 5), (4, 63), (16, 64), (33, 200), (5, 129)])
@pytest.mark.parametrize(("heads", "group", "channels"), [(1, 1, 16), (2, 3, 24), (1, 7, 64)])
def test_the_mass_is_the_sum_of_the_queries_probs(queries, tokens, heads, group, channels):
    one = block(queries, tokens, heads, group, channels)
    found = by_kernels(one)
    assert found.shape == (1, heads, group, tokens)
    assert torch.allclose(found, one.probs.sum(1), **EXACT)
    assert torch.allclose(found.sum(-1), torch.full((1, heads, group), float(queries)), **EXACT)


def test_rows_and_heads_may_hold_different_rows_and_ask_with_different_queries():
    """Positions with gaps, as evictions leave them, newest rows that some queries do not see, padding, and a row of a shorter window."""
    one = block(6, 150, rows=2)
    for row, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        held = 150 if (row, head) == (0, 0) else 97
        positions = torch.full((150,), -1)
        positions[:held] = torch.randperm(300)[:held].sort().values
        one.row_pos[row, head] = positions
        one.keys[row, head, held:] = float("nan")
    one.query_pos = torch.tensor([[40, 90, 150, 280, 299, 300], [-2, -1, 0, 100, 200, 300]])
    one.query_valid = torch.tensor([[True] * 6, [False, False, True, True, True, True]])
    expected = torch.nan_to_num(one.probs).sum(1)
    assert torch.allclose(by_kernels(one), expected, **EXACT)


def test_queries_that_see_nothing_give_nothing():
    one = block(3, 20)
    one.query_pos = torch.tensor([[4, -1, 19]])
    one.row_pos[:] = torch.arange(5, 25)
    found = by_kernels(one)
    assert torch.isfinite(found).all()
    assert torch.allclose(found.sum(-1), torch.ones(1, 2, 2)), "only the last of them sees rows"


def test_keys_of_any_distance_between_heads_and_positions_alike_for_all():
    one = block(4, 70, heads=3)
    wide = torch.randn(1, 3, 96, 16)
    wide[:, :, :70] = one.keys
    one.keys, one.row_pos = wide[:, :, :70], torch.arange(70)[None, None].expand(1, 3, 70)
    assert torch.allclose(by_kernels(one), one.probs.sum(1), **EXACT)


@pytest.mark.parametrize("over_i", ["sum", "mean"])
def test_a_blocks_mass_counts_its_real_queries_alone(over_i):
    one = block(4, 30, rows=2)
    one.query_valid = torch.tensor([[True] * 4, [False, False, False, True]])
    counted = torch.tensor([4.0, 1.0])[:, None, None, None]
    expected = one.probs.sum(1) if over_i == "sum" else one.probs.sum(1) / counted
    assert torch.allclose(one.mass(over_i), expected, **EXACT)
    assert torch.allclose(one.mass(over_i)[1], one.probs[1, 3], **EXACT)
    one.query_valid = torch.zeros((2, 4), dtype=torch.bool)
    fresh = QueryBlock(one.Q, one.query_pos, one.query_valid, one.keys, row_pos=one.row_pos)
    assert not fresh.mass(over_i).any()


@pytest.mark.parametrize("method", ["snapkv", "pyramidkv", "ada_snapkv"])
def test_whole_models_keep_the_rows_and_give_the_ids_of_the_torch_path(monkeypatch, method):
    found, calls = [], []
    for with_kernels in (False, True):
        if with_kernels:
            monkeypatch.setattr(QueryBlock, "mass", lambda self, over_i: (calls.append(over_i), by_kernels(self) / (1 if over_i == "sum" else self.Q.shape[1]))[1])
        made = engine(method)
        for n, length in enumerate((33, 70)):
            add(made, prompt(length, seed=n), 3, name=f"row {n}")
        found.append({name: ids_of(outputs) for name, outputs in drain(made).items()})
    assert calls, "no prompt was longer than what is kept of it"
    assert found[0] == found[1]
