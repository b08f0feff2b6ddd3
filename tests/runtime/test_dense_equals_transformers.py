"""The dense engine against transformers' own generation, on the real model and on tiny ones of every family."""

from __future__ import annotations

import pytest
import torch
from engines import add, drain, engine, ids_of, prompt
from sparsec_runtime.models.loading import load_model
from transformers import AutoModelForCausalLM, GenerationConfig


def greedy_by_transformers(module, tokens: list[int], new: int) -> list[int]:
    """Greedy ids by the library's own `generate`, which goes on after an end token."""
    config = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0)
    return module.generate(torch.tensor([tokens]), generation_config=config)[0, len(tokens) :].tolist()


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"])
def test_every_family_gives_the_greedy_ids_of_transformers(family):
    made = engine("dense", model=family, chunk=16)
    config = made.model.module.config
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    weights = {name.replace("self_attn.original.", "self_attn."): value for name, value in made.model.module.state_dict().items()}
    reference.load_state_dict(weights)
    tokens = prompt(50, seed=3)
    name = add(made, tokens, 12)
    assert ids_of(drain(made)[name]) == greedy_by_transformers(reference, tokens, 12)


@pytest.mark.model
def test_the_built_in_model_gives_the_greedy_ids_of_transformers():
    from sparsec_runtime.engine import Engine
    from sparsec_runtime.models.pull import pull
    from sparsec_runtime.sampler import SamplingParams

    from sparsec.pipeline import Compilation, load_manager

    model = load_model("smollm2-135m", dtype="float32")
    reference = AutoModelForCausalLM.from_pretrained(pull("smollm2-135m"), dtype=torch.float32, local_files_only=True).eval()
    tokens = model.tokenizer.encode_chat([{"role": "user", "content": "Name three colours of the rainbow."}])
    made = Engine(load_manager(Compilation.load("dense")), model)
    outputs = list(made.generate([tokens], SamplingParams(max_tokens=24, ignore_eos=True)))
    assert ids_of(outputs) == greedy_by_transformers(reference, tokens, 24)
