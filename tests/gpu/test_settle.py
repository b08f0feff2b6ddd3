"""Rows of prompts that hooks evict or move, by compiled kernels: stored rows, codes, positions and states are those that torch leaves on the same device."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import triton
from engines import add, drain, prompt, tiny_model
from settled import CASES, after_prompts, assert_same, params_of
from sparsec_runtime.engine import Engine
from sparsec_runtime.options import EngineOptions

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager


@pytest.mark.parametrize(("method", "more"), CASES, ids=str)
def test_prompts_leave_what_torch_leaves(method, more):
    model, device = tiny_model(), torch.device("cuda")
    here = replace(model, module=copy.deepcopy(model.module).to(device), device=device, rope=model.rope.to(device))
    compilation, found = Compilation.load(method, params=params_of(method, more), model=from_shape(model.shape)), []
    for by_kernels in (True, False):
        made = Engine(load_manager(compilation), here, EngineOptions(chunk=32, memory_tokens=4096, capture_at_start=False))
        made.request_params = dict(compilation.dynamic_params)
        assert made.manager.settle is not None
        if not by_kernels:
            made.manager.settle = None
        found.append(after_prompts(made))
    assert_same(*found)


@pytest.mark.parametrize("method", ["snapkv", "h2o", "pyramidkv", "ada_snapkv", "kivi", "streamingllm", "dense"])
def test_no_request_waits_for_a_compiler(method):
    """Kernels of prompts, and those that run between two decode steps, are compiled before the first request."""
    model, device = tiny_model(dtype="bfloat16"), torch.device("cuda")
    here = replace(model, module=copy.deepcopy(model.module).to(device), device=device, rope=model.rope.to(device))
    params = {"block": 8, "residual": 16} if method == "kivi" else {}
    compilation = Compilation.load(method, params=params, model=from_shape(model.shape))
    made = Engine(load_manager(compilation), here, EngineOptions(chunk=512, memory_tokens=8192, max_running=2))
    made.request_params = dict(compilation.dynamic_params)
    compiled = []
    triton.knobs.compilation.listener = lambda **seen: compiled.append(seen["src"].name)
    try:
        for n, length in enumerate((3001, 2512, 37)):
            add(made, prompt(length, seed=n), 4 if n else 140, name=f"row {n}")
        drain(made)
    finally:
        triton.knobs.compilation.listener = None
    assert not compiled
