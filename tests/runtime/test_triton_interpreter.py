"""The Triton kernels of a decode step in interpreter mode, on tiny shapes: greedy ids equal those of the eager path, token for token."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import engine, ids_of_rows, tiny_model, with_kernels
from sparsec_runtime import warm
from sparsec_runtime.engine import Engine
from sparsec_runtime.gpu.graphs import CannotCapture, DecodeGraphs
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.warm import serve_nobody

from sparsec.diagnostics import Source
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

# method: prompt lengths, new tokens. Lengths lie around a page; the evicting method evicts in decode, the choosing one chooses.
CASES = {"dense": ((3, 15, 16, 17), 3), "snapkv": ((41,), 3), "pyramidkv": ((41, 17), 3), "ada_snapkv": ((41, 19), 3), "quest": ((23, 41), 4), "h2o": ((40, 9), 8), "streamingllm": ((40, 9), 4), "tova": ((40, 9), 8), "omnikv": ((41, 9), 4)}


def ids_with(method: str, kernels: bool) -> tuple[dict[str, list[int]], int]:
    lengths, new = CASES[method]
    made = with_kernels(engine(method)) if kernels else engine(method)
    return ids_of_rows(made, lengths, new), made.graphs.bulk_steps if kernels else 0


@pytest.mark.parametrize("method", CASES)
def test_decode_with_kernels_gives_the_ids_of_the_eager_path(method):
    found, bulk = ids_with(method, kernels=True)
    assert found == ids_with(method, kernels=False)[0]
    assert (bulk > 0) == (method in ("h2o", "streamingllm", "tova")), "rows are evicted between two graphs"


@pytest.mark.parametrize("method", ["h2o", "streamingllm", "kivi", "dense"])
def test_requests_of_nobody_decode_until_rows_go_and_leave_nothing(method, monkeypatch):
    monkeypatch.setattr(warm, "LONGEST", 48)
    monkeypatch.setattr(warm, "STEPS", 12)
    made = with_kernels(engine(method))
    small = made.manager.resolve_params
    monkeypatch.setattr(made.manager, "resolve_params", lambda given, prompt_tokens=None: small({**made.request_params, **given}, prompt_tokens))
    serve_nobody(made.model, made.manager, made.graphs)
    assert (made.graphs.bulk_steps == 1) == (method != "dense")
    assert made.manager.pages().live == 0 and made.graphs._batch is None
    assert ids_of_rows(made, (40, 9), 4) == ids_of_rows(engine(method), (40, 9), 4)


def test_a_method_without_kernels_is_refused_with_the_line_and_the_hook():
    text = "sparse 1\nmethod mine {\n  on build_decode_selection when len > 8 {\n    attend recent(8)\n  }\n}\n"
    model = tiny_model()
    manager = load_manager(Compilation(Source("mine.sparse", text), model=from_shape(model.shape).names()))
    made = Engine(manager, model, EngineOptions(memory_tokens=256))
    with pytest.raises(CannotCapture, match="line 3, on build_decode_selection: the kernel reads"):
        DecodeGraphs(made.model, made.manager, pool_tokens=256)
