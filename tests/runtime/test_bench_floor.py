"""Floors of decode steps against those that the targets were set from, and the pools that hold a batch. Shapes only: no weight is made."""

from __future__ import annotations

import pytest
from sparsec.bench.floor import floor_of
from sparsec.bench.workload import Workload
from sparsec.model_facts import load_model_facts

MODEL = load_model_facts("llama-3.1-8b-49k")
FLOORS = [
    ("dense", {}, 32768, 8, 11.3), ("dense", {}, 32768, 22, 25.3), ("dense", {}, 131072, 2, 11.3),
    ("quest", {"budget": "2048"}, 32768, 8, 4.8), ("quest", {"budget": "2048"}, 131072, 2, 4.4),
    ("snapkv", {"budget": "8192"}, 32768, 8, 5.3), ("snapkv", {"budget": "8192"}, 32768, 64, 19.3), ("snapkv", {"budget": "8192"}, 131072, 2, 3.8),
    ("h2o", {"budget": "8192", "interval": "128"}, 32768, 8, 5.3), ("streamingllm", {"budget": "8192", "interval": "128"}, 32768, 8, 5.3),
    ("omnikv", {"budget": "2048"}, 32768, 8, 5.0), ("pyramidkv", {"budget": "8192"}, 32768, 8, 5.3), ("ada_snapkv", {"budget": "8192"}, 32768, 8, 5.3),
    ("tova", {"budget": "8192", "interval": "128"}, 32768, 8, 5.3),
    ("kivi", {"k_bits": "4", "v_bits": "4"}, 32768, 8, 5.8), ("kivi", {"k_bits": "2", "v_bits": "2"}, 32768, 8, 4.85),
    ("kivi", {"k_bits": "2", "v_bits": "2", "flush": "blocks"}, 32768, 8, 4.85),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params", "context", "batch", "milliseconds"), FLOORS)
def test_the_floor_of_a_method_is_what_the_targets_were_set_from(method, params, context, batch, milliseconds):
    assert floor_of(Workload(method, params, context, batch), MODEL).milliseconds == pytest.approx(milliseconds, abs=0.05)


def test_bytes_of_the_floor_are_weights_rows_and_bounds():
    dense = floor_of(Workload("dense", {}, 32768, 8), MODEL)
    assert dense.weights == pytest.approx(14.36e9, rel=1e-3)
    assert dense.rows == 8 * 32769 * 131072 and dense.summaries == 0
    quest = floor_of(Workload("quest", {"budget": "2048"}, 32768, 8), MODEL)
    assert quest.summaries == 30 * 8 * 2049 * 8 * 2 * 128 * 2  # layers, requests, pages, heads, low and high, channels, bytes
