"""Rows of prompts that hooks evict or move, by kernels in interpreter mode: stored rows, codes, positions and states are those that torch leaves."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import add, drain, engine, ids_of, prompt
from settled import CASES, after_prompts, assert_same, params_of
from sparsec_runtime.gpu.settle import settle_by_kernels


def moves_of(made):
    return made.manager.DECODE.moves if made.manager.LAYOUT.scope == "shared" else None


@pytest.mark.parametrize(("method", "more"), CASES, ids=str)
def test_prompts_leave_what_torch_leaves(method, more):
    plain, made, done = engine(method, params=params_of(method, more), chunk=32), engine(method, params=params_of(method, more), chunk=32), []
    made.manager.settle = lambda *args: done.append(settle_by_kernels(moves_of(made), *args)) or done[-1]
    wanted = after_prompts(plain)
    assert_same(after_prompts(made), wanted)
    assert any(done), "kernels settled some step"
    ids = [{name: ids_of(outputs) for name, outputs in drain(one).items()} for one in (plain, made)]
    assert ids[0] == ids[1]


def test_a_step_in_which_layers_differ_is_left_to_torch():
    made, seen = engine("snapkv", chunk=32), []

    def watched(storage, step, residents):
        residents[0]._source = None  # as if its layers had evicted nothing
        seen.append(settle_by_kernels(None, storage, step, residents))
        return True

    made.manager.settle = watched
    add(made, prompt(100, seed=9), 2, name="late")
    while made.progress("late") < 100:
        made.step()
    assert seen and not any(seen)
