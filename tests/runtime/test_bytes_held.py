"""Promised bytes are held bytes, measured from the pages that a request owns, at the head shape of the built-in model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engines import prompt
from sparsec_runtime.engine import Engine
from sparsec_runtime.models.loading import load_model
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.sampler import SamplingParams

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

LAYERS, KV_HEADS, HEAD_DIM, BF16 = 2, 3, 64, 2
ROW_BYTES = 2 * HEAD_DIM * BF16  # K and V of one token in one layer and head


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory: Path = tmp_path_factory.mktemp("model")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 144, "intermediate_size": 128, "num_hidden_layers": LAYERS,
        "num_attention_heads": 9, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": 256, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return load_model(directory, dtype="bfloat16", load_format="dummy")


def usage_after(model, method: str, tokens: int, new: int, params: dict[str, object]):
    compilation = Compilation.load(method, params=params, model=from_shape(model.shape))
    engine = Engine(load_manager(compilation), model, EngineOptions(chunk=512, memory_tokens=8192, max_running=1))
    sampling = SamplingParams(max_tokens=new, ignore_eos=True)
    return list(engine.generate([prompt(tokens)], sampling, compilation.dynamic_params))[-1].usage


def test_two_bit_codes_hold_at_most_a_quarter_of_dense(model):
    held = usage_after(model, "kivi", 4096, 1, {"block": 32, "residual": 128, "k_bits": 2, "v_bits": 2}).kv_bytes
    dense = usage_after(model, "dense", 4096, 1, {}).kv_bytes
    assert dense == 4096 * LAYERS * KV_HEADS * ROW_BYTES
    assert held <= 0.25 * dense


@pytest.mark.parametrize("budget", [100, 257])
def test_ragged_heads_hold_their_budget_within_a_page_each(model, budget):
    held = usage_after(model, "ada_snapkv", 700, 1, {"budget": budget}).kv_bytes
    exact = budget * LAYERS * KV_HEADS * ROW_BYTES
    page = 16 * ROW_BYTES
    assert exact <= held <= exact + page * LAYERS * KV_HEADS


@pytest.mark.parametrize("method", ["snapkv", "streamingllm", "tova", "h2o"])
def test_an_evicting_method_holds_its_budget_and_new_tokens_in_whole_pages(model, method):
    held = usage_after(model, method, 300, 5, {"budget": 64}).kv_bytes
    rows = 64 if method in ("streamingllm", "tova") else 64 + 4
    assert held == -(-rows // 16) * 16 * LAYERS * KV_HEADS * ROW_BYTES
