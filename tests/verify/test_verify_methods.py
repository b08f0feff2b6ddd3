"""Every shipped method, and a spec that nobody has seen, through the same runner as the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsec.verify.report import Outcome, Status, to_text
from sparsec.verify.runner import verify
from sparsec.verify.subject import Subject

METHODS = sorted((Path(__file__).parents[2] / "methods").glob("*.sparse"))
UNSEEN = """sparse 1

method unseen "Keeps the rows with the largest values, and reads only the newest half of them in deep layers"  {
  param rows_kept: tokens in 2.. = 512
  param tail: tokens in 1..rows_kept = max(1, rows_kept // 4)

  state worth[t, h]: f32 = 0

  on after_prefill_attention, after_decode_attention {
    worth[t, h] += max[i, g](probs[i, h, g, t])
  }

  on build_decode_selection for layer > 0 when len > rows_kept {
    attend recent(tail) then top[t](worth[t, h]) upto rows_kept
  }

  on finish_step when len > rows_kept + 3 {
    evict keep sink(1) | recent(tail) then top[t](worth[t, h]) upto rows_kept + 1
  }

  ensure "few rows stay" decoding implies len <= rows_kept + 3
  ensure "first row stays" sink(1) in kept
}
"""


def failures(outcomes: list[Outcome], path: str) -> str:
    return "\n".join(to_text(outcome, path) for outcome in outcomes if outcome.failed)


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_every_property_of_a_shipped_method_holds(path: Path) -> None:
    outcomes = verify(Subject.load(str(path), {}), range(1))
    assert not failures(outcomes, str(path))
    assert sum(outcome.status is Status.PASSED for outcome in outcomes) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_every_property_of_a_shipped_method_holds_on_many_seeds(path: Path) -> None:
    outcomes = verify(Subject.load(str(path), {}), range(1, 12))
    assert not failures(outcomes, str(path))


def test_a_spec_outside_the_repository_is_verified_without_any_code(tmp_path: Path) -> None:
    path = tmp_path / "unseen.sparse"
    path.write_text(UNSEEN)
    outcomes = verify(Subject.load(str(path), {}), range(2))
    assert not failures(outcomes, str(path))
    clauses = [outcome for outcome in outcomes if outcome.property.startswith("ensure")]
    assert [outcome.status for outcome in clauses] == [Status.PASSED, Status.PASSED]


def test_what_does_not_apply_is_skipped_with_its_reason() -> None:
    path = next(path for path in METHODS if "store kq" in path.read_text())
    outcomes = {outcome.property: outcome for outcome in verify(Subject.load(str(path), {}), range(1), ("reference",))}
    assert outcomes["dense limit"].status is Status.SKIPPED
    assert "store K or V rounded" in outcomes["dense limit"].reason
