"""S7xx: a decode hook costs no more than attention itself, unless the spec allows it."""

import pytest

from found import codes, diagnostics


def worth(expression: str, hook: str = "finish_step", items: str = "") -> list[str]:
    return codes(f"{items}\non {hook} when len > 64 {{ evict keep recent(1) then top[t]({expression}) upto 64 }}")


ALIKE = "mean[s in all](sum[c](K[t, h, c] * K[s, h, c]))"


@pytest.mark.parametrize(
    "expression",
    [
        "norm[c](K[t, h, c])",
        "sum[h, c](K[t, h, c] * V[t, h, c])",
        "max[i in last(4), g](sum[c](Q[i, h, g, c] * K[t, h, c]))",
        "sum[i in last(8), g](probs[i, h, g, t])",
        "mean[s in recent(8)](sum[c](K[t, h, c] * K[s, h, c]))",
    ],
)
def test_what_attention_itself_costs_is_allowed(expression: str) -> None:
    assert worth(expression) == []


@pytest.mark.parametrize("expression", [ALIKE, "norm[c, d](K[t, h, c] * K[t, h, d])"])
def test_more_than_attention_needs_leave(expression: str) -> None:
    assert worth(expression) == ["S701"]
    assert worth(expression, items="schedule { allow_quadratic = true }") == []
    assert worth(expression, items="schedule { allow_quadratic = false }") == ["S701"]


def test_a_hook_that_runs_once_may_cost_more() -> None:
    assert worth(ALIKE, hook="end_of_prompt") == []


def test_the_rows_of_all_pages_are_the_rows_once() -> None:
    body = """
      param page_size: tokens in {16, 32} = 16
      on build_decode_selection {
        attend open_page then top[p](max[i, g](max[t in p](sum[c](Q[i, h, g, c] * K[t, h, c])))) upto 8
      }
    """
    assert codes(body) == []


def test_the_report_names_the_term_and_the_hook() -> None:
    (found,) = diagnostics(f"on finish_step {{ evict keep recent(1) then top[t]({ALIKE}) upto 64 }}")
    assert "O(len * len * kv_heads * head_dim)" in found.message
    assert "`finish_step`" in found.message


def test_a_page_size_that_changes_results_is_a_param() -> None:
    plain = "on finish_step { evict keep recent(8) }\nschedule { page_size = 32 }"
    assert codes(plain) == []
    paged = "on build_decode_selection { attend open_page }"
    assert codes(paged + "schedule { page_size = 32 }") == ["S702"]
    assert codes(paged) == ["S704"]
    assert codes("param page_size: tokens in {16, 32} = 16\n" + paged) == []
