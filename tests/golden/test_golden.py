"""Golden cases: what the methods' own authors' code keeps, selects, encodes and returns, against `sparsec.replay` on every target."""

from __future__ import annotations

import json

import pytest
from cases import DATA, NAMES, call_of, entries_compared, load, run
from comparing import compared
from replay_calls import replay_call


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["reference", "torch"])
def test_a_replay_gives_what_the_authors_code_gives(name: str, target: str) -> None:
    assert entries_compared(name, target) > 0, "nothing was compared"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("snapkv", "pyramidkv", "ada_snapkv"))])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_sets_chosen_at_the_end_of_the_prompt_do_not_depend_on_chunks(name: str, chunk: int) -> None:
    case = load(name)
    call = call_of(case, name)
    trace = run(case, call, "reference", chunk)
    for expected in call.compare:
        compared(case, call, trace, expected)


def test_every_expected_tensor_is_compared_or_known_to_be_derived() -> None:
    inputs = {"q", "k", "v", "q_pre", "k_pre"}
    derived = ("score_pos", "head_len", "expected_dense", "expected_k_dequant", "expected_v_dequant", "expected_k_codes_packed", "expected_v_codes_packed")
    for name in NAMES:
        meta = json.loads((DATA / f"{name}.json").read_text())
        call = replay_call(meta)
        left = [tensor for tensor in meta["tensors"] if tensor not in inputs and tensor not in call.compare and not tensor.startswith(derived)]
        exempt = name in ("snapkv_below_budget", "tova_kvpress_prefill_r06")  # nothing ranked; a sentinel in the score
        assert not left or (exempt and all(tensor.startswith("score") for tensor in left)), (name, left)
