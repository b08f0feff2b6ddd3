"""Rows in two zones on a CUDA device: compiled attention over codes against plain attention, whole decode steps against the eager path."""

from __future__ import annotations

import pytest
import torch
from coded import attend, attended, part_pools
from engines import ids_of_rows, tiny_model
from sparsec_runtime.engine import Engine
from sparsec_runtime.layout import Codec
from sparsec_runtime.options import EngineOptions
from test_decode_graphs import on_cuda

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

RAGGED = ((5, 0, 0), (33, 32, 32), (70, 64, 40), (70, 32, 61), (300, 288, 299), (2700, 2688, 2572), (1, 0, 0))
TOLERANCE = {torch.bfloat16: 1.2e-2, torch.float16: 2e-3, torch.float32: 2e-5}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("k_bits", "v_bits", "group", "dim"), [(4, 4, 4, 128), (2, 2, 8, 128), (8, 8, 1, 64), (2, 4, 2, 96), (4, 2, 7, 256), (4, 4, 4, 80)])
@pytest.mark.parametrize(("warps", "stages", "block", "assembly"), [(1, 3, 32, 1), (1, 3, 32, 0), (2, 2, 32, 1), (1, 2, 8, 1)])
def test_attention_over_coded_and_raw_rows_equals_plain_attention(dtype, k_bits, v_bits, group, dim, warps, stages, block, assembly):
    if dim % block:
        block //= 2
    if dtype == torch.float32 and (warps, block, assembly) != (1, 32, 1):
        pytest.skip("fp32 runs with the sizes that are set alone")
    kernels = load_manager(Compilation.load("kivi", params={"k_bits": k_bits, "v_bits": v_bits, "block": block})).decode_kernels()
    heads, pages = 2, (128, 16)
    k, v = (
        part_pools([(row[0], row[n]) for row in RAGGED], codec, heads, dim, pages, dtype, seed=n)
        for n, codec in ((1, Codec(k_bits, "t", block)), (2, Codec(v_bits, "c", block)))
    )
    q = torch.randn(len(RAGGED), heads * group, dim, generator=torch.Generator().manual_seed(9)).to(dtype)
    out = attend(
        kernels, k, v, [row[0] for row in RAGGED], q, pages, "cuda", CHUNK=1024, REST=128, STAGES=stages, warps=4 if dtype == torch.float32 else warps,
        assembly=assembly,
    )
    for n in range(len(RAGGED)):
        wanted = attended(q[n], k.rows[n], v.rows[n], dim**-0.5)
        assert ((out[n].double() - wanted).norm() / wanted.norm()).item() < TOLERANCE[dtype], RAGGED[n]


CASES = {
    "reference, 2 bit": {"block": 8, "residual": 16},
    "reference, 4 and 8 bit": {"block": 16, "residual": 32, "k_bits": 4, "v_bits": 8},
    "blocks, 4 bit": {"block": 16, "residual": 16, "flush": "blocks", "k_bits": 4, "v_bits": 4},
}


def generate(params, model, graphs):
    compilation = Compilation.load("kivi", params=params, model=from_shape(model.shape))
    made = Engine(load_manager(compilation), model, EngineOptions(chunk=32, memory_tokens=4096, graphs=graphs, capture_at_start=False))
    made.request_params = dict(compilation.dynamic_params)
    return ids_of_rows(made, (3, 15, 16, 17, 41, 60), 40), made


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_graphs_give_the_ids_of_the_eager_path(case, name):
    model = on_cuda(tiny_model(name))
    found, made = generate(CASES[case], model, True)
    assert made.graphs is not None, made.eager_because
    assert made.graphs.bulk_steps > 0
    assert found == generate(CASES[case], model, False)[0]
