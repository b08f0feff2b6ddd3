"""Attention that counts positions anew, in interpreter mode: against plain attention over keys that are rotated at their ranks, and whole decodes."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from against_oracle import Batch, assert_kernels_equal_oracle
from engines import engine, ids_of_rows, tiny_model, with_kernels
from sparsec_runtime.engine import Engine
from sparsec_runtime.options import EngineOptions
from turned import PER_HEAD, Case, assert_attends_at_ranks

from sparsec.diagnostics import Source
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

PAGE = 16
LENGTHS = (0, 1, PAGE - 1, PAGE, PAGE + 1, 33, 70)


@pytest.mark.parametrize("group", [1, 2, 3, 4])
def test_keys_are_read_rotated_at_their_ranks(group: int) -> None:
    assert_attends_at_ranks(Case(LENGTHS, heads=2, group=group, dim=64), "cpu")


@pytest.mark.parametrize(
    ("dim", "rotary", "scaling"), [(80, 80, 1.0), (64, 32, 1.0), (80, 20, 1.0), (80, 32, 1.3), (64, 64, 1.2), (16, 8, 1.0)],
)  # fmt: skip
def test_channels_that_do_not_turn_pass_through_and_scaled_embeddings_scale_the_others(dim: int, rotary: int, scaling: float) -> None:
    assert_attends_at_ranks(Case(LENGTHS, heads=1, group=2, dim=dim, rotary=rotary, scaling=scaling), "cpu")


def test_logits_are_told_as_they_are_attended() -> None:
    assert_attends_at_ranks(Case(LENGTHS, heads=2, group=2, dim=16, tells=True), "cpu")


def test_rows_of_a_large_batch_are_spread_out_anew_for_each_item() -> None:
    assert_attends_at_ranks(Case(LENGTHS, heads=2, group=2, dim=16, padded_entries=128), "cpu")


def test_heads_of_different_lengths_count_for_themselves() -> None:
    assert_attends_at_ranks(Case((1, 40, 0, 17, 16, 5), heads=2, group=2, dim=16, per_head=True), "cpu")


RANKS = {"budget": 24, "interval": 5, "positions": "cache"}


@pytest.mark.parametrize("more", [{}, {"interval": 1, "reduce": "max"}, {"evict_in_decode": False}], ids=str)
def test_decode_across_evictions_gives_the_ids_of_the_eager_path(more: dict[str, object]) -> None:
    lengths, new = (40, 9), 8
    kernels = with_kernels(engine("h2o", params=RANKS | more))
    assert ids_of_rows(kernels, lengths, new) == ids_of_rows(engine("h2o", params=RANKS | more), lengths, new)
    assert (kernels.graphs.bulk_steps > 0) == more.get("evict_in_decode", True)


ASKED = (
    "sparse 1\nmethod mine {\n  zone main {\n    decode K[t, h, c] = rope(K_raw[t, h, c], order(t))\n  }\n  on end_of_prompt, finish_step when len > 24 {\n"
    "    let care[t] = mean[i in last(1), h, g](probs[i, h, g, t])\n    evict keep recent(1) then top[t](care[t]) upto 24\n  }\n}\n"
)


def test_the_newest_query_ranks_rows_by_what_it_gives_them_at_their_ranks() -> None:
    made = [of_source(ASKED, memory_tokens=4096) for _ in "ab"]
    assert ids_of_rows(with_kernels(made[0]), (40, 9), 5) == ids_of_rows(made[1], (40, 9), 5)
    assert made[0].graphs.bulk_steps > 0


def test_keys_are_normed_before_they_turn() -> None:
    kernels, eager = (engine("h2o", model="tiny-qwen3", params=RANKS) for _ in "ab")
    assert ids_of_rows(with_kernels(kernels), (40,), 6) == ids_of_rows(eager, (40,), 6)


def test_heads_of_different_lengths_decode_as_on_the_eager_path() -> None:
    made = [of_source(PER_HEAD, memory_tokens=4096) for _ in "ab"]
    assert ids_of_rows(with_kernels(made[0]), (45, 9), 6) == ids_of_rows(made[1], (45, 9), 6)
    assert made[0].graphs.bulk_steps > 0


def of_source(text: str, **options) -> Engine:
    model = tiny_model()
    made = Engine(load_manager(Compilation(Source("mine.sparse", text), model=from_shape(model.shape).names())), model, EngineOptions(chunk=32, **options))
    made.request_params = {}
    return made


def test_positions_inside_the_cache_change_the_answer() -> None:
    original = ids_of_rows(engine("h2o", params=RANKS | {"positions": "original"}), (40, 9), 8)
    cache = ids_of_rows(engine("h2o", params=RANKS), (40, 9), 8)
    assert original["row 0"] != cache["row 0"] and original["row 1"] == cache["row 1"]


TINY = {"layers": 1, "channels": 16, "prompts": (1, 17, 25), "new": 3}
BATCHES = (
    Batch("h2o", {"budget": 16, "recent": 6, "interval": 2, "positions": "cache"}, theta=10000.0, **TINY),
    Batch("h2o", {"budget": 16, "recent": 6, "interval": 1, "positions": "cache", "heads": "joint"}, theta=10000.0, **TINY),
)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_kernels_keep_read_and_return_what_the_oracle_says(batch: Batch) -> None:
    assert_kernels_equal_oracle(batch, "cpu")
