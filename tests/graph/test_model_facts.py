"""Facts of a model from its config alone."""

from __future__ import annotations

import subprocess
import sys

from sparsec.model_facts import load_model_facts


def test_bytes_per_token_are_those_of_known_models():
    assert load_model_facts("llama-3.1-8b").kv_bytes_per_token == 131072
    assert load_model_facts("qwen3-4b").kv_bytes_per_token == 147456


def test_an_untied_input_embedding_is_not_read_by_a_decode_step():
    untied, tied = load_model_facts("llama-3.1-8b"), load_model_facts("smollm2-135m")
    assert untied.weight_bytes - untied.read_bytes == 128256 * 4096 * 2
    assert tied.weight_bytes == tied.read_bytes


def test_names_are_those_of_the_language():
    names = load_model_facts("tiny-llama").names()
    assert names == {
        "n_layers": 3, "kv_heads": 2, "group": 2, "head_dim": 16, "kv_width": 64, "hidden_width": 64, "scale": 0.25,
        "context": 4096,
    }  # fmt: skip


def test_facts_and_graphs_need_no_torch():
    code = (
        "import sys\n"
        "import sparsec.commands.explain, sparsec.graph.estimate, sparsec.graph.build, sparsec.model_facts\n"
        "sparsec.model_facts.load_model_facts('tiny-llama')\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
