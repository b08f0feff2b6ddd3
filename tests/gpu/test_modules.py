"""Fused modules on the device: hidden states of a whole model as transformers' own modules give them."""

from __future__ import annotations

import copy

import pytest
import torch
from engines import tiny_model
from sparsec_runtime.gpu.modules import fuse_modules


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_norms_and_mlps_give_what_the_originals_give(name, dtype, tolerance):
    module = copy.deepcopy(tiny_model(name, dtype=dtype).module).cuda()
    originals = copy.deepcopy(module.model.layers)
    fuse_modules(module)
    hidden = torch.randn(1, 300, module.config.hidden_size, device="cuda", dtype=getattr(torch, dtype))
    for fused, original in zip(module.model.layers, originals):
        for part in ("input_layernorm", "post_attention_layernorm", "mlp"):
            got, wanted = getattr(fused, part)(hidden).double(), getattr(original, part)(hidden).double()
            assert (got - wanted).norm() <= tolerance * wanted.norm(), part
