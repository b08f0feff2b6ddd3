"""`sparsec.replay` on the Triton target, in interpreter mode: ragged batches equal the oracle, and what cannot be replayed is refused."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from against_oracle import Batch, assert_kernels_equal_oracle

from sparsec.replay import ReplayError, replay

TINY = {"layers": 1, "channels": 16, "prompts": (1, 17, 25), "new": 3}
BATCHES = (
    Batch("h2o", {"budget": 16, "recent": 6, "interval": 2}, **TINY),
    Batch("quest", {"budget": 8, "page_size": 4, "dense": 0, "min_pages": 1, "heads": "kv_head"}, group=3, **TINY),
    Batch("streamingllm", {"budget": 12, "sinks": 3}, theta=10000.0, **TINY),
    Batch("ada_snapkv", {"budget": 16, "window": 4}, **TINY),
)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_kernels_keep_read_and_return_what_the_oracle_says(batch: Batch) -> None:
    assert_kernels_equal_oracle(batch, "cpu")


def call(**changed: object) -> dict[str, object]:
    return {**Batch("dense", **TINY).tensors(6, seed=0), "prompt_len": 4, "target": "triton", **changed}


def test_states_are_recorded_and_what_lives_inside_a_kernel_is_not() -> None:
    params = {"budget": 4, "recent": 2}
    mine, oracle = (replay("h2o", **call(params=params, record=("score",), target=target)) for target in ("triton", "reference"))
    for step, layers in enumerate(mine.recorded["score"]):
        found, wanted = (layers[0].at(1), oracle.recorded["score"][step][0].at(1))
        assert found.keys() == wanted.keys() and found
        for position, score in found.items():
            torch.testing.assert_close(score, wanted[position])
    with pytest.raises(ReplayError, match="record: care lives inside a kernel; on target triton the method stores main.rows"):
        replay("tova", **call(params={"budget": 4}, record=("care",)))
    with pytest.raises(ReplayError, match="record: nothing does not exist; on target triton the method stores main.rows, score"):
        replay("h2o", **call(params=params, record=("nothing",)))


def test_summaries_are_recorded_as_the_kernels_leave_them() -> None:
    params = {"budget": 4, "page_size": 4, "dense": 0, "min_pages": 1, "heads": "kv_head"}
    mine, oracle = (replay("quest", **call(params=params, record=("kmin",), target=target)) for target in ("triton", "reference"))
    found, wanted = (trace.recorded["kmin"][-1][0] for trace in (mine, oracle))
    order = [wanted.letters.index(letter) for letter in found.letters]
    assert torch.equal(found.values, wanted.values.permute(order))


def test_a_method_without_kernels_is_refused_with_its_reasons() -> None:
    text = "sparse 1\nmethod mine {\n  on build_decode_selection when len > 8 {\n    attend recent(8)\n  }\n}\n"
    with pytest.raises(ReplayError, match="mine has no decode kernels: line 3, on build_decode_selection: the kernel reads"):
        replay(text, **call())


def test_interleaved_rope_is_refused() -> None:
    with pytest.raises(ReplayError, match="no decode kernels: RoPE pairs interleaved channels"):
        replay("dense", **call(rotated=False, rope={"theta": 1e4, "style": "interleaved"}))


def test_queries_of_decode_steps_that_were_not_given_are_refused_with_the_hook() -> None:
    tensors = Batch("dense", **TINY).tensors(6, seed=0)
    late = {**tensors, "q": tensors["q"][:, 5:], "q_start": 5, "prompt_len": 4, "target": "triton"}
    with pytest.raises(ReplayError, match="build_decode_selection observes queries before q_start"):
        replay("quest", **late, params={"heads": "kv_head"})
    trace = replay("dense", **late)
    assert [len(heads[0]) for step in trace.attended for heads in step] == [0, 0, 6]


def test_a_cpu_without_the_interpreter_is_refused(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ReplayError, match="needs TRITON_INTERPRET=1"):
        replay("dense", **call())


@pytest.mark.parametrize(("device", "target", "message"), [("cuda", "triton", "there is no CUDA here"), ("cuda", "reference", "the reference runs on cpu"), ("nowhere", "torch", "does not exist")])
def test_devices_that_cannot_run_are_refused(device: str, target: str, message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        replay("dense", **call(device=device, target=target))
