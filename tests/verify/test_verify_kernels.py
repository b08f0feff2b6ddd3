"""The verifier on decode kernels, in interpreter mode: a short trace passes, a kernel that is fed wrongly is found, what has no kernels is skipped."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("the compiled kernels are verified by `sparsec verify --target triton`", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from sparsec import replay_triton
from sparsec.cli import main
from sparsec.verify.case import NotRunnable
from sparsec.verify.properties import equal_targets, self_visibility
from sparsec.verify.property import Violation
from sparsec.verify.subject import Subject


def short_case(method: str, **params: str):
    case = Subject.load(method, params).case(1)
    inputs = min(case.traces, key=lambda one: one.prompt_len)
    return case.with_traces((inputs.first(inputs.prompt_len + 3),))


def on_triton(properties):
    return next(one for one in properties if one.target == "triton")


def test_kernels_agree_with_the_oracle_on_a_trace() -> None:
    case = short_case("kivi")
    assert len(case.triton(case.traces[0]).steps) == case.traces[0].new + 1
    for properties in (equal_targets.PROPERTIES, self_visibility.PROPERTIES):
        assert list(on_triton(properties).check(case)) == []


def test_kernels_that_read_other_values_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = replay_triton.tensors_of
    monkeypatch.setattr(replay_triton, "tensors_of", lambda *given: (*real(*given)[:2], 2 * real(*given)[2]))
    found = list(on_triton(equal_targets.PROPERTIES).check(short_case("dense")))
    assert isinstance(found[0], Violation) and "the triton target does not do what the oracle does: the outputs differ" in found[0].message


def test_a_method_without_kernels_is_no_violation() -> None:
    case = short_case("quest", heads="query_head")
    with pytest.raises(NotRunnable, match="quest has no decode kernels: line"):
        case.triton(case.traces[0])


def test_without_cuda_and_interpreter_the_target_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    assert main(["verify", "dense", "--target", "triton", "--seed", "0"]) == 2
    assert "--target triton: there is no CUDA here" in capsys.readouterr().err
