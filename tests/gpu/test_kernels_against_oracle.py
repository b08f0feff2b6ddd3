"""Every method's decode kernels on a CUDA device against the oracle: random Q, K, V over groups, head dimensions and dtypes, in ragged batches.

fp32 within 1e-4, and the same rows kept and read; bf16 and fp16 by their outputs (against_oracle.TOLERANCES), since rounded scores may tie.
Each batch is a set of specialisations of its own, and compiling one takes seconds: few combinations, each with several things at once.
"""

from __future__ import annotations

import pytest
import torch
from against_oracle import PAGE, Batch, assert_kernels_equal_oracle

LONG = (1, PAGE, 3 * PAGE + 1, 1100)  # several chunks of one row, and rests
H2O = {"budget": 24, "recent": 8, "interval": 3}
WINDOW = {"budget": 24, "window": 8, "kernel": 3}
PAGES = {"budget": 32, "dense": 1, "min_pages": 1, "heads": "kv_head"}
ENDS = {"budget": 20, "sinks": 3}
TOKENS = {"budget": 10, "sinks": 2, "window": 4, "filters": frozenset({0})}

EXACT = (
    Batch("dense", group=1, channels=64, prompts=LONG),
    Batch("dense", group=16, channels=80, kv_heads=1),
    Batch("dense", group=7, channels=256, kv_heads=1),
    Batch("h2o", {**H2O, "reduce": "sum"}, group=4, channels=128),
    Batch("h2o", {**H2O, "reduce": "mean"}, group=2, channels=96),
    Batch("h2o", {**H2O, "reduce": "max", "budget": 512}, group=7, channels=64, prompts=LONG),
    Batch("h2o", {**H2O, "budget": 512, "interval": 1}, group=4, channels=64, prompts=LONG),
    Batch("quest", {**PAGES, "budget": 512}, group=4, channels=96, layers=3, prompts=LONG),
    Batch("quest", {**PAGES, "page_size": 8}, group=7, channels=80),
    Batch("streamingllm", ENDS, group=4, channels=128, theta=10000.0),
    Batch("streamingllm", {**ENDS, "positions": "original"}, group=1, channels=80),
    Batch("tova", {"budget": 24}, group=4, channels=96),
    Batch("snapkv", WINDOW, group=2, channels=64),
    Batch("ada_snapkv", WINDOW, group=7, channels=128),
    Batch("pyramidkv", {**WINDOW, "beta": 4}, group=16, channels=64, layers=3),
    Batch("omnikv", TOKENS, group=4, channels=80, layers=3),
    Batch("kivi", {"block": 8, "residual": 16}, group=4, channels=64),
)
ROUNDED = (
    (Batch("dense", group=4, channels=256), torch.bfloat16),
    (Batch("dense", group=16, channels=128, kv_heads=1, prompts=LONG), torch.float16),
    (Batch("h2o", H2O, group=4, channels=128), torch.bfloat16),
    (Batch("h2o", {**H2O, "reduce": "max"}, group=7, channels=64), torch.float16),
    (Batch("quest", PAGES, group=4, channels=128), torch.bfloat16),
    (Batch("quest", PAGES, group=8, channels=256, kv_heads=1), torch.float16),
    (Batch("streamingllm", ENDS, group=2, channels=64, theta=10000.0), torch.bfloat16),
    (Batch("streamingllm", ENDS, group=8, channels=128, kv_heads=1, theta=10000.0), torch.float16),
    (Batch("tova", {"budget": 24}, group=1, channels=128), torch.bfloat16),
    (Batch("tova", {"budget": 24}, group=8, channels=80, kv_heads=1), torch.float16),
    (Batch("ada_snapkv", WINDOW, group=4, channels=80), torch.bfloat16),
    (Batch("ada_snapkv", WINDOW, group=8, channels=96), torch.float16),
    (Batch("omnikv", TOKENS, group=7, channels=128), torch.bfloat16),
    (Batch("omnikv", TOKENS, group=4, channels=96), torch.float16),
    (Batch("omnikv", TOKENS, group=8, channels=256, kv_heads=1), torch.float16),
    (Batch("kivi", {"block": 8, "residual": 16}, group=4, channels=128), torch.float16),
)


@pytest.mark.parametrize("batch", EXACT, ids=str)
def test_kernels_keep_read_and_return_what_the_oracle_says(batch: Batch) -> None:
    assert_kernels_equal_oracle(batch, "cuda")


@pytest.mark.parametrize(("batch", "dtype"), ROUNDED, ids=lambda value: str(value).removeprefix("torch."))
def test_kernels_in_half_precision_return_what_the_oracle_says(batch: Batch, dtype: torch.dtype) -> None:
    assert_kernels_equal_oracle(batch, "cuda", dtype)
