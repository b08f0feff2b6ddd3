"""Counts made on the host equal what the interpreter really keeps, at every step, for every method whose counts are exact."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from sparsec.graph.capacity import Simulation
from sparsec.graph.values import resolve
from sparsec.replay import replay

LAYERS, KV_HEADS, GROUP, DIM, PROMPT, NEW = 3, 2, 2, 8, 45, 14
MODEL = {"n_layers": LAYERS, "kv_heads": KV_HEADS, "group": GROUP, "head_dim": DIM, "kv_width": 32, "hidden_width": 32, "scale": DIM**-0.5}
CASES = [
    ("dense", {}),
    ("snapkv", {"budget": 16, "window": 4}),
    ("snapkv", {"budget": 16, "window": 4, "evict_in_prefill": True}),
    ("pyramidkv", {"budget": 12, "window": 4, "beta": 3}),
    ("pyramidkv", {"budget": 12, "window": 4, "beta": 3, "evict_in_prefill": True}),
    ("pyramidkv", {"budget": 12, "window": 4, "beta": 3, "rounding": "floor_step"}),
    ("h2o", {"budget": 16, "interval": 5}),
    ("h2o", {"budget": 16, "interval": 5, "evict_in_prefill": True}),
    ("streamingllm", {"budget": 16, "interval": 1}),
    ("streamingllm", {"budget": 16, "evict_in_decode": False}),
    ("tova", {"budget": 16, "interval": 2}),
]


def trace(name: str, params: dict, chunk: int | None, record: tuple[str, ...] = ()):
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(3)
    q = torch.randn(LAYERS, PROMPT + NEW, KV_HEADS * GROUP, DIM, generator=random)
    k, v = (torch.randn(LAYERS, PROMPT + NEW, KV_HEADS, DIM, generator=random) for _ in range(2))
    raw = {"rotated": False, "rope": {"theta": 10000.0, "style": "half-split", "dim": DIM}} if name == "streamingllm" else {}
    return replay(name, q=q, k=k, v=v, prompt_len=PROMPT, params=params, chunk=chunk, record=record, **raw)


def simulation(compilation) -> Simulation:
    return Simulation(compilation.special, resolve(compilation.checked, dict(compilation.params), MODEL), MODEL)


@pytest.mark.parametrize(("name", "params"), CASES)
@pytest.mark.parametrize("chunk", [7, None])
def test_counts_are_those_of_the_interpreter(compiled, name, params, chunk):
    kept = trace(name, params, chunk).kept
    counts = simulation(compiled(name, **params))
    for step in range(NEW + 1):
        result = counts.run(PROMPT, step, chunk)
        assert result.exact
        for layer in range(LAYERS):
            assert [len(rows) for rows in kept[step][layer]] == [result.final["main", "K", layer]] * KV_HEADS, f"step {step}, layer {layer}"


@pytest.mark.parametrize("flush", ["reference", "blocks"])
def test_rows_of_zones_are_those_of_the_interpreter(compiled, flush):
    params = {"block": 4, "residual": 8, "flush": flush}
    recorded = trace("kivi", params, 7, ("tail.rows", "packed.rows")).recorded
    counts = simulation(compiled("kivi", **params))
    for step in range(NEW + 1):
        final = counts.run(PROMPT, step, 7).final
        for zone in ("tail", "packed"):
            assert recorded[f"{zone}.rows"][step][0].values.tolist() == [final[zone, "K", 0], final[zone, "V", 0]], f"step {step}, {zone}"


@pytest.mark.parametrize(("chunk", "early"), [(None, False), (7, True)])
def test_ragged_heads_share_exactly_the_counted_rows(compiled, chunk, early):
    params = {"budget": 12, "window": 4, "evict_in_prefill": early}
    kept = trace("ada_snapkv", params, chunk).kept
    result = simulation(compiled("ada_snapkv", **params)).run(PROMPT, 0, chunk)
    for layer in range(LAYERS):
        held = [len(rows) for rows in kept[0][layer]]
        assert Fraction(sum(held), KV_HEADS) == result.after_prompt["main", "K", layer]
        assert len(set(held)) > 1 or layer
