"""The built-in model on the device: the built-in document's question gets the CPU's greedy ids in fp32. Skipped where the model was not pulled."""

from __future__ import annotations

import pytest
from sparsec_runtime.models.catalog import builtin_model
from sparsec_runtime.models.loading import load_model
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.sampler import SamplingParams

from sparsec.data.document import built_in
from sparsec.session import open_engine

pytestmark = pytest.mark.slow
NAME, NEW = "smollm2-135m", 24


def answer(method, device, dtype):
    """Ids and text of the answer, and why decode is not in graphs ("" where it is)."""
    model = load_model(NAME, dtype=dtype, device=device)
    engine = open_engine(method, model, options=EngineOptions(memory_tokens=4096, max_running=1))
    ids = model.tokenizer.encode_chat([{"role": "user", "content": built_in().prompt}])
    params = {} if method == "dense" else {"budget": "25%"}
    outputs = list(engine.generate([ids], SamplingParams(max_tokens=NEW), params))
    assert outputs[-1].error is None
    return [token for output in outputs for token in output.token_ids], "".join(output.text for output in outputs), engine.eager_because


@pytest.mark.parametrize("method", ["snapkv", "h2o", "dense"])
def test_the_device_gives_the_ids_of_the_cpu(method):
    if builtin_model(NAME).state != "ready":
        pytest.skip(f"{NAME} is not in the cache: sparsec pull {NAME}")
    ids, text, eager = answer(method, "cuda", "float32")
    print(f"\n{method} on {NAME}, float32: {text!r}")
    assert not eager
    assert ids == answer(method, "cpu", "float32")[0]


@pytest.mark.parametrize("method", ["snapkv", "h2o", "dense"])
def test_sixteen_bit_answers_too(method):
    if builtin_model(NAME).state != "ready":
        pytest.skip(f"{NAME} is not in the cache: sparsec pull {NAME}")
    ids, text, eager = answer(method, "cuda", "bfloat16")
    print(f"\n{method} on {NAME}, bfloat16: {text!r}")
    assert ids and not eager
