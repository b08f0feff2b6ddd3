"""Fused modules of a GPU model in interpreter mode: the hidden states of transformers' own modules, and the same weights."""

from __future__ import annotations

import copy
import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import tiny_model
from sparsec_runtime.gpu.modules import FusedMlp, FusedNorm, fuse_modules


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-qwen3"])
def test_a_layer_of_fused_modules_gives_what_the_original_gives(name):
    module = copy.deepcopy(tiny_model(name).module)
    original = copy.deepcopy(module.model.layers[0])
    held = sum(weight.numel() for weight in module.parameters())
    fuse_modules(module)
    layer = module.model.layers[0]
    hidden = torch.randn(1, 5, module.config.hidden_size, generator=torch.Generator().manual_seed(1))
    for norm in ("input_layernorm", "post_attention_layernorm"):
        assert isinstance(getattr(layer, norm), FusedNorm)
        assert torch.allclose(getattr(layer, norm)(hidden), getattr(original, norm)(hidden), atol=1e-6)
    assert isinstance(layer.mlp, FusedMlp)
    assert torch.allclose(layer.mlp(hidden), original.mlp(hidden), atol=1e-5)
    assert sum(weight.numel() for weight in module.parameters()) == held, "nothing is held twice"
    assert layer.mlp.gate_proj.weight.data_ptr() == layer.mlp.gate_up.data_ptr(), "gate is a view of the fused matrix"


def test_another_activation_keeps_its_mlp():
    module = copy.deepcopy(tiny_model().module)
    module.config.hidden_act = "gelu"
    fuse_modules(module)
    assert not isinstance(module.model.layers[0].mlp, FusedMlp) and isinstance(module.model.layers[0].input_layernorm, FusedNorm)
