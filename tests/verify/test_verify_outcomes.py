"""What an outcome says: skipped clauses give their reason, rounding breaks no clause, text and JSON carry the same facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsec.reference import ensures
from sparsec.verify.report import Outcome, Status, Where, summary, to_json, to_text
from sparsec.verify.runner import verify
from sparsec.verify.subject import Subject

SPEC = """sparse 1

method clauses "Evicts by position; its clauses are due, never due, or true up to rounding" {
  param budget: tokens in 1.. = 8

  on finish_step when len > budget {
    let square[t, h] = sum[c](V[t, h, c] * V[t, h, c])
    evict keep recent(budget)
  }

  on build_decode_selection for layer > 7 {
    let far = len - 1
    attend recent(budget)
  }

  ensure "rounding" square[t, h] / 41 * 41 >= square[t, h]
  ensure "deep" far >= 0
  ensure "strict" len < budget
}
"""
FAILED = Outcome(
    "slots conserved", "some", "torch", Status.FAILED, "a page is lost",
    Where("2 layers", {"budget": 3, "layers": frozenset({1, 0})}, "gaussian", 7, 5, 4, step=2, layer=1), line=9, seed=3, traces=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("specs") / "clauses.sparse"
    path.write_text(SPEC)
    return str(path)


@pytest.fixture(scope="module")
def outcomes(spec: str) -> dict[str, Outcome]:
    return {outcome.property: outcome for outcome in verify(Subject.load(spec, {}), range(2), ("reference",))}


def test_a_clause_that_was_never_due_is_skipped_and_says_so(outcomes: dict[str, Outcome]) -> None:
    deep = outcomes['ensure "deep"']
    assert deep.status is Status.SKIPPED and "never due" in deep.reason


def test_a_clause_that_holds_up_to_rounding_passes(outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    assert outcomes['ensure "rounding"'].status is Status.PASSED
    monkeypatch.setattr(ensures, "SLACK", 0.0)
    exact = {outcome.property: outcome for outcome in verify(Subject.load(spec, {}), range(2), ("reference",))}
    assert exact['ensure "rounding"'].status is Status.FAILED


def test_counts_are_compared_exactly(outcomes: dict[str, Outcome]) -> None:
    strict = outcomes['ensure "strict"']
    assert strict.status is Status.FAILED and strict.line == SPEC[: SPEC.index('ensure "strict"')].count("\n") + 1


def test_text_names_property_line_seed_and_trace() -> None:
    text = to_text(FAILED, "some.sparse")
    for part in ("failed", "slots conserved", "[torch]", "some.sparse:9", "seed 3", "budget=3", "prompt 7", "chunk 4", "step 2", "layer 1"):
        assert part in text


def test_json_carries_the_trace_as_an_object() -> None:
    found = json.loads(to_json(FAILED))
    assert found["status"] == "failed" and found["line"] == 9 and found["seed"] == 3
    assert found["trace"]["params"] == {"budget": 3, "layers": [0, 1]} and found["trace"]["prompt_len"] == 7


def test_the_summary_counts_what_passed_failed_and_was_skipped() -> None:
    passed = Outcome("positions", "some", "torch", Status.PASSED, traces=3)
    assert summary("some", [FAILED, passed, passed]) == "some: 2 passed, 1 failed, 0 skipped"


UNUSUAL = """sparse 1

method unusual "A state without letters, and a hook that no target runs" {
  state rounds: i32 = 0
  state seen: f32 = 0.5
  HOOK
  on after_decode_attention {
    rounds += 1
    seen = max[i, h, g, t](probs[i, h, g, t])
  }

  on finish_step when len > 8 and rounds >= 0 and seen >= 0 {
    evict keep recent(8)
  }

  ensure "counted" rounds >= 0
}
"""


def test_states_without_letters_are_compared_like_others(tmp_path: Path) -> None:
    path = tmp_path / "unusual.sparse"
    path.write_text(UNUSUAL.replace("  HOOK\n", ""))
    found = verify(Subject.load(str(path), {}), range(2), ("reference", "torch"))
    assert {outcome.property for outcome in found if outcome.status is Status.FAILED} == set()
    assert next(outcome for outcome in found if "target" in outcome.property).status is Status.PASSED


def test_a_hook_that_the_oracle_does_not_run_makes_properties_skipped_with_that_reason(tmp_path: Path) -> None:
    path = tmp_path / "unusual.sparse"
    path.write_text(UNUSUAL.replace("HOOK", "on probe_attention { seen = max[i, h, g, t](probs[i, h, g, t]) }"))
    found = verify(Subject.load(str(path), {}), range(2), ("reference",))
    assert {outcome.status for outcome in found} == {Status.SKIPPED}
    assert any("probe_attention" in (outcome.reason or "") for outcome in found)
