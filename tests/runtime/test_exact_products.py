"""Products in fp32: no engine has torch round them, and none runs a float32 model on a device where the process has asked for that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import engine, ids_of_rows, tiny_model
from sparsec_runtime.gpu.start import decode_graphs
from sparsec_runtime.options import EngineOptions


def as_on_cuda(dtype):
    """What an engine is told of a model's graphs, as if it lay on a CUDA device."""
    return decode_graphs(replace(tiny_model(dtype=dtype), device=torch.device("cuda")), None, EngineOptions(graphs=False))[1]


@pytest.fixture
def rounding():
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def test_an_engine_leaves_products_of_fp32_exact():
    ids_of_rows(engine("h2o"), (5,), 2)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_float32_model_is_refused_where_its_products_are_rounded(rounding):
    with pytest.raises(ValueError, match="rounds products of this float32 model to tf32"):
        as_on_cuda("float32")
    assert torch.backends.cuda.matmul.allow_tf32, "the setting is left as it was"


def test_other_models_and_devices_do_not_care(rounding):
    assert as_on_cuda("bfloat16") == "the engine's options say graphs=False"
    assert engine("dense").graphs is None


def test_a_float32_model_is_served_where_they_are_not():
    assert as_on_cuda("float32") == "the engine's options say graphs=False"
