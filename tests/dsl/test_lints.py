"""W8xx: legal, but without effect. A warning never stops a compilation."""

from pathlib import Path

import pytest

from found import codes, diagnostics
from sparsec.diagnostics import Severity, Source
from sparsec.dsl.check import check
from sparsec.dsl.parser import parse
from sparsec.render import render_all

PINNED = Path(__file__).parent.parent / "diagnostics"

BUDGET = "param budget: tokens in 1.. = 1024\n"


def keep(ranking: str, lets: str = "") -> list[str]:
    votes = "let votes[t, h] = sum[i in last(8), g](probs[i, h, g, t])"
    return codes(f"{BUDGET} on end_of_prompt when len > budget {{ {votes} {lets} evict keep {ranking} }}")


def test_findings_are_warnings() -> None:
    (found,) = diagnostics("param unused: tokens in 1.. = 4")
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "score", ["softmax[t](votes[t, h])", "exp(votes[t, h])", "votes[t, h] / budget", "2 * votes[t, h]", "votes[t, h] + 1"]
)
def test_a_growing_transform_before_top_has_no_effect(score: str) -> None:
    assert keep(f"recent(1) then top[t]({score}) upto budget") == ["W804"]


@pytest.mark.parametrize("score", ["-votes[t, h]", "relu(votes[t, h])", "votes[t, h] * norm[c](V[t, h, c])"])
def test_other_transforms_before_top_stand(score: str) -> None:
    assert keep(f"recent(1) then top[t]({score}) upto budget") == []


def test_a_softmax_per_head_changes_a_joint_ranking() -> None:
    assert keep("recent(1) then top[t, h](softmax[t](votes[t, h])) upto budget * kv_heads") == []


def test_the_fix_of_a_transform_is_the_score_itself() -> None:
    body = "on end_of_prompt { let a[t, h] = norm[c](K[t, h, c]) evict keep recent(1) then top[t](exp(a[t, h])) upto 8 }"
    (found,) = diagnostics(body)
    assert codes(body.replace("exp(a[t, h])", found.fixes[0].text)) == []


def test_a_default_above_the_context_of_the_model_is_reported_with_the_model_alone() -> None:
    body = BUDGET + "on finish_step when len > budget { evict keep recent(budget) }"
    assert codes(body) == []
    assert codes(body, {"context": 512}) == ["W805"]
    assert codes(body, {"context": 2048}) == []


@pytest.mark.parametrize("rows", ["recent(0)", "sink(0)"])
def test_a_window_of_no_rows_is_reported(rows: str) -> None:
    assert keep(f"{rows} | recent(1) then top[t](votes[t, h]) upto budget") == ["W806"]


def test_a_ranking_without_room_takes_nothing() -> None:
    assert keep("recent(budget) then top[t](votes[t, h]) upto budget") == ["W807"]
    assert keep("recent(1) then top[t](votes[t, h]) then bottom[t](votes[t, h]) upto budget") == ["W807"]
    assert keep("recent(1) then top[t in recent(1)](votes[t, h]) upto budget") == ["W807"]
    assert keep("recent(budget) then top[t](votes[t, h]) upto budget + 1") == []


@pytest.mark.parametrize(
    ("condition", "constant"),
    [
        ("budget > 0", True),
        ("true", True),
        ("budget < 1", True),
        ("not budget > 0", True),
        ("len > budget", False),
        ("budget > 5", False),
    ],
)
def test_a_condition_that_never_changes_is_reported(condition: str, constant: bool) -> None:
    body = f"{BUDGET} on finish_step when {condition} {{ evict keep recent(budget) }}"
    assert codes(body) == (["W808"] if constant else [])


def test_a_let_that_only_an_ensure_reads_is_used() -> None:
    body = "on finish_step { let half = len // 2 evict keep recent(8) }\n"
    assert codes(body) == ["W802"]
    assert codes(body + 'ensure "half" half <= len') == []


def test_a_page_size_is_used_by_pages_themselves() -> None:
    size = "param page_size: tokens in {16, 32} = 16\n"
    assert codes(size + "on build_decode_selection { attend open_page }") == []
    assert codes(size + "on finish_step { evict keep recent(8) }") == ["W801"]


def test_the_text_of_a_default_above_the_context_of_the_model() -> None:
    spec = PINNED / "with_model" / "W805.sparse"
    source = Source(spec.name, spec.read_text(encoding="utf-8"))
    found = check(parse(source), source, {"context": 512}).warnings
    assert render_all(found, source) + "\n" == (PINNED / "W805.txt").read_text(encoding="utf-8")


def test_a_choice_value_of_the_same_name_is_no_use_of_a_param() -> None:
    body = """
      param window: tokens in 1.. = 8
      param what: choice in {window, whole} = window
      on finish_step when what == window { evict keep recent(8) }
    """
    assert codes(body) == ["W801"]
