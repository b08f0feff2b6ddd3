"""Golden cases: what the methods' own authors' code keeps, selects, encodes and returns, against `sparsec.replay` on every target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from comparing import Case, compared
from replay_calls import Call, replay_call
from safetensors.torch import load_file

from sparsec.replay import replay

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))


def load(name: str) -> Case:
    meta = json.loads((DATA / f"{name}.json").read_text())
    tensors: dict[str, torch.Tensor] = {}
    for file in meta["files"]:
        tensors |= load_file(DATA / file)
    return Case(meta, tensors)


def run(case: Case, call: Call, target: str, chunk: int | None):
    source = "_pre" if not call.rotated else ""
    return replay(
        call.spec,
        q=case.tensors["q" + source],
        k=case.tensors["k" + source],
        v=case.tensors["v"],
        prompt_len=case.meta["prompt_len"],
        q_start=case.meta.get("q_start", 0),
        params=call.params,
        chunk=chunk,
        rotated=call.rotated,
        rope=call.rope,
        dtype=call.dtype,
        record=call.record,
        target=target,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["reference", "torch"])
def test_a_replay_gives_what_the_authors_code_gives(name: str, target: str) -> None:
    case = load(name)
    call = replay_call(case.meta)
    assert isinstance(call, Call), f"every shared case of these methods is a call, but {name} is {call}"
    trace = run(case, call, target, call.chunk)
    checked = [compared(case, call, trace, expected) for expected in call.compare]
    assert sum(checked) > 0, "nothing was compared"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("snapkv", "pyramidkv", "ada_snapkv"))])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_sets_chosen_at_the_end_of_the_prompt_do_not_depend_on_chunks(name: str, chunk: int) -> None:
    case = load(name)
    call = replay_call(case.meta)
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
