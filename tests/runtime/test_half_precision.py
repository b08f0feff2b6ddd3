"""Engines in 16 bit on a CPU: every method runs to its end, greedy and sampled, on logits that are numbers."""

from __future__ import annotations

import math

import pytest
import torch
from engines import METHODS, add, drain, engine, ids_of, prompt

NEW = 9


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_a_method_runs_to_its_end_in_16_bit(method: str, dtype: str) -> None:
    made = engine(method, "tiny-qwen3", dtype=dtype)
    assert made.manager.storage.dtype == made.model.dtype == getattr(torch, dtype)
    greedy, sampled = add(made, prompt(60), NEW, logprobs=3), add(made, prompt(33, seed=1), NEW, logprobs=3, temperature=0.8, top_p=0.9, seed=5)
    outputs = drain(made)
    for name in (greedy, sampled):
        told = [entry for output in outputs[name] for entry in output.logprobs]
        assert len(ids_of(outputs[name])) == len(told) == NEW and outputs[name][-1].error is None
        assert all(math.isfinite(value) for entry in told for value in (entry.logprob, *(pair[1] for pair in entry.top)))
