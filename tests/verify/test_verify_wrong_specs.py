"""Specs that check cleanly and are wrong: the verifier names the clause that they break, its line, and a trace that shows it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from sparsec.cli import main
from sparsec.verify.report import Outcome, Status
from sparsec.verify.runner import verify
from sparsec.verify.subject import Subject

WRONG = Path(__file__).parent / "wrong"
BROKEN = {
    "score_reset": ("invariant chunks", "invariant chunks"),
    "burst_drops_protected": ('ensure "newest rows survive"', 'ensure "newest rows survive"'),
    "mean_is_no_bound": ('ensure "bound is sound"', 'ensure "bound is sound"'),
}


@cache
def outcomes_of(name: str) -> dict[str, Outcome]:
    """One seed, on the oracle."""
    subject = Subject.load(str(WRONG / f"{name}.sparse"), {})
    return {outcome.property: outcome for outcome in verify(subject, range(1), ("reference",))}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_spec_fails_at_the_line_of_the_clause_that_it_breaks(name: str) -> None:
    prop, clause = BROKEN[name]
    failed = [outcome for outcome in outcomes_of(name).values() if outcome.failed]
    assert [outcome.property for outcome in failed] == [prop]
    text = (WRONG / f"{name}.sparse").read_text().splitlines()
    assert clause in text[failed[0].line - 1]


@pytest.mark.parametrize("name", BROKEN)
def test_a_failure_tells_seed_shape_params_prompt_chunk_and_step(name: str) -> None:
    broken = next(outcome for outcome in outcomes_of(name).values() if outcome.failed)
    assert broken.seed is not None and broken.trace is not None
    assert broken.trace.prompt_len >= 1 and broken.trace.chunk >= 1 and broken.trace.step is not None
    assert "budget" in broken.trace.params and "kv_heads" in broken.trace.shape


def test_the_other_clauses_of_a_wrong_spec_pass() -> None:
    assert outcomes_of("burst_drops_protected")['ensure "memory stays bounded"'].status is Status.PASSED


def test_the_command_exits_1_and_prints_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(WRONG / "burst_drops_protected.sparse")
    assert main(["verify", path, "--target", "reference", "--seeds", "1"]) == 1
    assert f"{path}:23" in capsys.readouterr().out


def test_json_has_one_object_per_property_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["verify", str(WRONG / "score_reset.sparse"), "--target", "reference", "--seeds", "1", "--format", "json"])
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"property", "method", "status", "reason", "trace", "line", "seed"} <= objects[0].keys()
    broken = next(entry for entry in objects if entry["status"] == "failed")
    assert (broken["property"], broken["method"], broken["line"]) == ("invariant chunks", "score_reset", 17)
    assert broken["trace"]["params"]["budget"] >= 1


def test_the_same_seed_finds_the_same_trace() -> None:
    again = outcomes_of.__wrapped__("mean_is_no_bound")
    assert again == outcomes_of("mean_is_no_bound")
