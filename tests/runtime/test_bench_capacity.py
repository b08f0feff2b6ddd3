"""The arithmetic of capacity and of useful work, on the shape that the targets are set for. No weight and no page is made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sparsec.bench.capacity import NEW_TOKENS, largest_batch
from sparsec.bench.prefill import Chunk, by_context, useful_flops, worst_ratio
from sparsec.bench.room import bytes_of, probe_of, prompt_pages, resident_pages
from sparsec.bench.workload import Workload
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager
from sparsec_runtime.models.shape import resolve_shape
from sparsec_runtime.rope import Rope

SHAPE = resolve_shape("llama-3.1-8b-49k")
MODEL = SimpleNamespace(shape=SHAPE, rope=Rope.plain(SHAPE.rope_theta, SHAPE.head_dim), dtype=torch.bfloat16)
GIB = 2**30
FREE = 114 * GIB
PROMPT = 131072


def probed(method: str, params: dict[str, str]):
    compilation = Compilation.load(method, params=params, model=from_shape(SHAPE))
    probe = probe_of(load_manager(compilation), MODEL)
    return probe, probe.resolve_params(compilation.dynamic_params, prompt_tokens=PROMPT)


def residents(method: str, params: dict[str, str], free: int = FREE) -> int:
    return largest_batch(*probed(method, params), Workload(method, params, PROMPT, fill="prompt"), NEW_TOKENS, free)


def test_dense_residents_take_16_gib_and_room_for_their_answers():
    each = (PROMPT + NEW_TOKENS + 2 * 16) * 131072
    assert residents("dense", {}) == FREE // each == 7


def test_compressed_residents_leave_room_for_one_prompt_at_its_peak():
    rows = 8192 + NEW_TOKENS + 2 * 16
    prompt = (PROMPT - rows) * (131072 + 32 * 8 * 4)  # K, V and positions
    assert residents("snapkv", {"budget": "8192"}) == pytest.approx((FREE - prompt) / (rows * (131072 + 32 * 8 * 4)), abs=1)
    assert residents("snapkv", {"budget": "4096"}) >= 110


def test_the_batch_that_is_found_fits_and_one_more_does_not():
    probe, params = probed("quest", {"budget": "2048"})
    work = Workload("quest", {"budget": "2048"}, PROMPT, fill="prompt")
    batch = largest_batch(probe, params, work, NEW_TOKENS, FREE)
    each = resident_pages(probe, params, PROMPT, NEW_TOKENS)
    more = prompt_pages(probe, params, work, each)
    sizes = [bytes_of(probe, {name: n * count + more[name] for name, count in each.items()}) for n in (batch, batch + 1)]
    assert sizes[0] <= FREE < sizes[1]


def test_where_no_request_fits_the_batch_is_0():
    assert residents("dense", {}, 10 * GIB) == 0


def test_a_codec_makes_room_for_more_residents():
    raw, coded = residents("dense", {}), residents("kivi", {"k_bits": "4", "v_bits": "4", "flush": "blocks"})
    assert coded > 2 * raw


def test_useful_work_of_a_prompt_is_two_operations_a_weight_and_half_of_attention():
    weights = SHAPE.parameters - 2 * SHAPE.vocab * SHAPE.hidden
    linear = 2 * weights * 32768 + 2 * SHAPE.vocab * SHAPE.hidden
    assert useful_flops(SHAPE, 32768) - linear == 32 * 32 * 128 * 2 * 32768 * 32769
    assert useful_flops(SHAPE, 32768) == pytest.approx(7e9 * 2 * 32768 + 2.8e14, rel=0.05)


def test_chunks_are_timed_beside_those_after_the_same_context():
    chunks = [Chunk(0, 8, 1.0), Chunk(0, 8, 3.0), Chunk(0, 8, 1.1), Chunk(8, 8, 2.0), Chunk(8, 3, 2.5), Chunk(16, 5, 9.0)]
    first, second = by_context(chunks, 8)
    assert (first.context, first.count, first.median_ms, first.worst_ms, first.shorter_ms) == (0, 3, 1.1, 3.0, None)
    assert (second.context, second.count, second.shorter_ms) == (8, 1, 2.5)
    assert worst_ratio((first, second)) == pytest.approx(3.0 / 1.1)
