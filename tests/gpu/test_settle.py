"""Rows of prompts that hooks evict or move, by compiled kernels: stored rows, codes, positions and states are those that torch leaves on the same device."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from engines import tiny_model
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
