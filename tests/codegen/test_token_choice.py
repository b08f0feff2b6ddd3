"""A choice of tokens across layers: which texts of two hooks are one, and what the manager then says."""

from __future__ import annotations

import pytest
from sparsec_runtime.decode_plan import At

from sparsec.diagnostics import Source
from sparsec.pipeline import Compilation, load_manager

SPEC = """sparse 1
method mine {{
  param amount: tokens in 0.. = 8
  state chosen: set[t] = all shared
  on after_decode_attention for layer == 1 {{
    let share[i, h, g, t] = softmax[t in {candidates}](logits[i, h, g, t])
    chosen = top[t in {candidates}]({worth}, {best})
  }}
  on build_decode_selection for layer > 1 {{
    attend {read}
  }}
}}
"""
PLAIN = {
    "candidates": "all - sink(amount) - recent(2 * amount + 1)",
    "worth": "max[i, h, g](share[i, h, g, t])",
    "best": "amount * 4",
    "read": "sink(amount) | recent(2 * amount + 1) | chosen",
}


def manager_of(**changes):
    return load_manager(Compilation(Source("mine.sparse", SPEC.format(**{**PLAIN, **changes}))))


def test_amounts_are_those_of_the_text():
    choice = manager_of().DECODE.tokens
    at = At({"amount": 5}, held=100, prompt=60)
    assert choice.state == "chosen" and choice.shares
    assert (choice.first(at), choice.newest(at), choice.best(at)) == (5, 11, 20)


@pytest.mark.parametrize("read", ["chosen | recent(2 * amount + 1) | sink(amount)", "recent(2 * amount + 1) | (chosen | sink(amount))"])
def test_the_order_of_a_union_does_not_matter(read):
    assert manager_of(read=read).DECODE.tokens is not None


def test_amounts_may_follow_lengths_and_worths_be_logits():
    tail = "max(amount + 1, len - prompt_rows)"
    ends = {"candidates": f"all - sink(amount) - recent({tail})", "read": f"sink(amount) | recent({tail}) | chosen"}
    choice = manager_of(worth="max[i, h, g](logits[i, h, g, t])", **ends).DECODE.tokens
    assert not choice.shares
    assert [choice.newest(At({"amount": 5}, held, 60)) for held in (61, 66, 67, 90)] == [6, 6, 7, 30]


@pytest.mark.parametrize(
    "changes",
    [
        {"read": "sink(amount) | recent(amount + 1) | chosen"},
        {"read": "recent(2 * amount + 1) | chosen"},
        {"read": "sink(amount) | recent(2 * amount + 1) | chosen | sink(2)"},
        {"worth": "sum[i, h, g](share[i, h, g, t])"},
        {"worth": "max[i, h](mean[g](share[i, h, g, t]))"},
        {"worth": "max[i, h, g](probs[i, h, g, t])"},
        {"candidates": "all - recent(2 * amount + 1)"},
    ],
    ids=str,
)
def test_what_says_something_else_is_no_kernel_and_both_hooks_say_so(changes):
    plan = manager_of(**changes).DECODE
    assert plan.tokens is None
    assert [reason.split(":")[0] for reason in plan.reasons] == ["line 9, on build_decode_selection", "line 5, on after_decode_attention"]


def test_the_kernel_reads_a_list_and_names_the_line_that_makes_it():
    text = Compilation(Source("mine.sparse", SPEC.format(**PLAIN))).decode
    assert "def attend_tokens(" in text and "def attend_rows_and_tell(" in text and "def attend_pages(" not in text
    assert "which line 5 chose" in text
