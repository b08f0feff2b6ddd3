"""Graph steps grow tables by pages that nobody clears: what those held before reaches no id, also where the torch path reads them afterwards."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import add, drain, engine, ids_of, poison, prompt
from sparsec_runtime.gpu import graphs

# method: prompt lengths, new tokens. Rows cross a page, and the evicting method evicts.
CASES = {"ada_snapkv": ((41, 13), 4), "h2o": ((41,), 7)}


def ids_of_graph_steps(method: str, poisoned: bool) -> tuple[list[list[int]], int]:
    lengths, new = CASES[method]
    made = engine(method)
    if poisoned:
        poison(made)
    made.graphs = graphs.DecodeGraphs(made.model, made.manager, pool_tokens=4096, tokens=128)
    names = [add(made, prompt(length, seed=length), new) for length in lengths]
    found = drain(made)
    return [ids_of(found[name]) for name in names], made.graphs.bulk_steps


@pytest.mark.parametrize(("method", "on_device"), [("ada_snapkv", True), ("h2o", False)])
def test_what_pages_held_before_a_graph_step_reaches_no_id(method, on_device, monkeypatch):
    """on_device False: evictions out of pages that graph steps have grown run in torch, which reads whole pages."""
    if not on_device:
        monkeypatch.setattr(graphs, "evicts_on_device", lambda *_: False)
    found, bulk = ids_of_graph_steps(method, poisoned=True)
    assert (found, bulk) == ids_of_graph_steps(method, poisoned=False)
    assert (bulk > 0) == (method == "h2o") and min(map(min, found)) >= 0
