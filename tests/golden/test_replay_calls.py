"""`replay_call` reads metadata only: variants that are not among the shared cases map to params too, quirks are skipped with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replay_calls import Call, Skip, replay_call

DATA = Path(__file__).parent / "data"


def call(name: str, variant: str | None = None, **changes: object) -> Call | Skip:
    """A shared case's metadata with other params; None removes one."""
    meta = json.loads((DATA / f"{name}.json").read_text())
    meta["variant"] = variant or meta["variant"]
    meta["params"] = {key: value for key, value in {**meta["params"], **changes}.items() if value is not None}
    return replay_call(meta)


def params(name: str, variant: str | None = None, **changes: object) -> dict[str, object]:
    made = call(name, variant, **changes)
    assert isinstance(made, Call), made
    return made.params


def test_streamingllm_modes_choose_positions_and_tensors() -> None:
    again = call("streamingllm_oneshot_s4_r28", "mode_B")
    assert isinstance(again, Call) and not again.rotated and again.rope == {"theta": 10000.0, "style": "half-split"}
    assert again.params["positions"] == "cache"
    kept = call("streamingllm_oneshot_s4_r28", "mode_C", position_reindex=False)
    assert isinstance(kept, Call) and kept.rotated and kept.rope is None and kept.params["positions"] == "original"


def test_chunked_eviction_is_passed_on() -> None:
    meta = json.loads((DATA / "h2o_gqa_mean_step.json").read_text())
    meta["chunk"] = 32
    meta["params"] |= {"evict_after_each_chunk": True, "eviction_interval": 4, "gqa_reduce": "max"}
    made = replay_call(meta)
    assert isinstance(made, Call) and made.chunk == 32
    assert (made.params["evict_in_prefill"], made.params["interval"], made.params["reduce"]) == (True, 4, "max")


def test_h2o_with_recounted_positions_takes_tensors_before_rope() -> None:
    made = call("h2o_gqa_mean_step", position_reindex=True)
    assert isinstance(made, Call) and not made.rotated and made.params["positions"] == "cache"


def test_every_query_head_keeping_its_own_rows_is_skipped_unless_heads_are_equal() -> None:
    assert isinstance(call("h2o_gqa_mean_step", gqa_reduce="none"), Skip)
    assert params("h2o_mha_short_prompt")["reduce"] == "mean"


def test_a_compression_ratio_is_the_removed_share_of_the_prompt() -> None:
    assert params("tova_kvpress_prefill_r06", cache_size=None)["budget"] == 48


def test_snapkv_scores_that_are_means_compare_after_a_factor() -> None:
    meta = json.loads((DATA / "snapkv_gqa_mean_max7.json").read_text())
    meta["score"]["meaning"] = "mean over the window of probabilities"
    made = replay_call(meta)
    assert isinstance(made, Call) and made.compare["score.L0.H0"] == ("smooth", 1 / 16)


def test_pyramidkv_rounds_as_the_reference_unless_the_case_says_otherwise() -> None:
    assert params("pyramidkv_3layers_no_clamp")["rounding"] == "floor_step"
    assert params("pyramidkv_3layers_no_clamp", rounding="largest_remainder")["rounding"] == "exact"


def test_ada_snapkv_variants() -> None:
    made = params("ada_snapkv_ffy0_alpha02_kv4", skip=1, alpha=0.5, normalize=True)
    assert (made["uniform_layers"], made["alpha"], made["normalize"], made["rounding"]) == (1, 0.5, True, "half_even")
    assert params("ada_snapkv_ffy0_alpha02_kv4", "kvpress_safeguard")["split"] == "ranking"


def test_quest_pages_that_are_always_read() -> None:
    made = params("quest_group_max_page8_kv4", sink_pages=1, recent_pages=2)
    assert (made["sink_pages"], made["recent_pages"], made["open"], made["heads"]) == (1, 2, "forced", "kv_head")
    ranked = params("quest_eval_perhead_partial_page")
    assert (ranked["open"], ranked["heads"], ranked["min_pages"]) == ("ranked", "query_head", 4)


def test_quest_pruning_a_context_below_the_budget_is_a_bug() -> None:
    made = call("quest_eval_perhead_partial_page", token_budget=512)
    assert isinstance(made, Skip) and "issue 22" in made.reason


def test_omnikv_selectors_candidates_and_waiting_layers() -> None:
    logit = params("omnikv_engine_sink_recent", "original_last", selector="last", num_of_selected_tokens=0.1, recent="generated")
    assert (logit["selector"], logit["candidates"], logit["budget"], logit["window"]) == ("logit", "prompt", 16, 1)
    waiting = params("omnikv_engine_sink_recent", num_wait_load_layers=1, full_attn_layers=None, filter_layers=[0])
    assert (waiting["filters"], waiting["waits"]) == (frozenset({0}), frozenset({0, 1}))


def test_kivi_schedules() -> None:
    assert params("kivi_2bit_g32_r32", k_bits=4, residual_length=64)["residual"] == 64
    assert params("kivi_2bit_g32_r32", "sparse_vllm_blocks")["flush"] == "blocks"


def test_a_method_of_a_later_issue_is_skipped() -> None:
    assert isinstance(replay_call({"method": "rkv", "tensors": {}}), Skip)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_names_are_those_that_are_compared(path: Path) -> None:
    made = replay_call(json.loads(path.read_text()))
    assert isinstance(made, Call)
    assert set(made.record) == {what for what, _ in made.compare.values()} - {"kept", "attended", "output"}
