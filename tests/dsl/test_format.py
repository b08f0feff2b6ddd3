"""What the layout looks like, and that no comment is lost."""

import random
import re
from pathlib import Path

import pytest

from sparsec.diagnostics import Source, SpecError
from sparsec.dsl.comments import comments
from sparsec.dsl.format import format_text
from sparsec.dsl.parser import parse

ROOT = Path(__file__).parent.parent.parent
METHODS = sorted(ROOT.glob("methods/*.sparse"))
SPECS = [*METHODS, *sorted(ROOT.glob("tests/drafts/*.sparse"))]


def in_hook(statement: str) -> str:
    """The formatted statement, its indent in the hook removed."""
    formatted = format_text(f"sparse 1 method m {{ on finish_step {{ {statement} }} }}")
    return "\n".join(line.removeprefix("    ") for line in formatted.split("\n")[4:-3])


@pytest.mark.parametrize(
    ("written", "formatted"),
    [
        ("let x=a+b*c", "let x = a + b * c"),
        ("let x = (a + b) * c", "let x = (a + b) * c"),
        ("let x = (a * b) + c", "let x = a * b + c"),
        ("let x = a - (b - c)", "let x = a - (b - c)"),
        ("let x = (a - b) - c", "let x = a - b - c"),
        ("let x = -(-a)", "let x = --a"),
        ("let x = -(a + b)", "let x = -(a + b)"),
        ("let x = not (a in b)", "let x = not a in b"),
        ("let x = (not a) == b", "let x = (not a) == b"),
        ("let x = (a < b) == c", "let x = (a < b) == c"),
        ("let x = (a | b) & c", "let x = (a | b) & c"),
        ("let x = a - b & c", "let x = a - b & c"),
        ("let x = a or b and c", "let x = a or (b and c)"),
        ("let x = a and b implies c", "let x = (a and b) implies c"),
        ("let x = (a implies b) implies c", "let x = (a implies b) implies c"),
        ("let x = sum[t in (a|b),h](y[t,h],width=3)", "let x = sum[t in a | b, h](y[t, h], width = 3)"),
        ("let x = sum[t in (a or b)](y)", "let x = sum[t in (a or b)](y)"),
        ("score [t , h]+=007", "score[t, h] += 7"),
        ("evict keep (a) then (b) upto (c)", "evict keep a then b upto c"),
        ("move K of(a-b)to z", "move K of a - b to z"),
        ("attend blind a", "attend blind a"),
        ("when a{}else{evict keep b}", "when a {\n} else {\n  evict keep b\n}"),
        ("when a{}", "when a {}"),
    ],
)
def test_one_statement_has_one_layout(written, formatted):
    assert in_hook(written) == formatted


def test_arms_of_nested_where_stand_under_each_other():
    long = "mean[g](sum[i in last(window)](probs[i, h, g, t]))"
    written = f"let votes[t, h] = where(reduce == mean, {long}, where(reduce == sum, {long}, {long}))"
    assert in_hook(written).split("\n") == [
        f"let votes[t, h] = where(reduce == mean, {long},",
        f"                  where(reduce == sum, {long},",
        f"                                       {long}))",
    ]


def test_a_long_condition_breaks_before_its_operators():
    written = "when " + " and ".join(f"condition_number_{i} > {i}" for i in range(8)) + " { evict keep all }"
    lines = in_hook(written).split("\n")
    assert [line.lstrip().split(" ")[0] for line in lines] == ["when", "and", "evict", "}"]
    assert lines[1].startswith("     and ")


def test_a_long_doc_text_stands_below_its_param():
    doc = "d" * 100
    formatted = format_text(f'sparse 1 method m {{ param budget: tokens in 1.. = 1024 "{doc}" }}')
    assert f'  param budget: tokens in 1.. = 1024\n    "{doc}"\n' in formatted


def test_comments_stay_where_their_statement_is():
    text = """sparse 1  # version
# about the method
method m {  # opened
  # about the param

  param a: tokens = 1  # trailing

  on finish_step {
    # first in the block
    let x = 1
    # last in the block
  }  # closed
  # last in the method
}
# the end
"""
    assert format_text(text) == text.replace("version\n", "version\n\n")


def test_a_comment_inside_of_a_statement_moves_above_it():
    formatted = format_text("sparse 1 method m { on finish_step { let x = a + # first\n b # second\n } }")
    assert "    # first\n    let x = a + b  # second\n" in formatted


def test_two_blank_lines_become_one_and_none_stays_at_the_edges_of_a_block():
    formatted = format_text("sparse 1\n\n\n\nmethod m {\n\n\n  zone a\n\n\n  zone b\n  zone c\n\n}\n")
    assert formatted == "sparse 1\n\nmethod m {\n  zone a\n\n  zone b\n  zone c\n}\n"


def test_carriage_returns_and_a_byte_order_mark_are_dropped():
    assert format_text("\ufeffsparse 1\r\n\r\nmethod m {\r\n  zone a # x\r\n}\r\n") == "sparse 1\n\nmethod m {\n  zone a  # x\n}\n"


def test_a_text_that_does_not_parse_is_refused():
    with pytest.raises(SpecError, match="S005"):
        format_text("sparse 1 method m {")


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.stem)
def test_a_shipped_method_is_in_the_layout_and_at_most_120_columns_wide(spec):
    text = spec.read_text(encoding="utf-8")
    assert format_text(text) == text
    breakable = [line for line in text.split("\n") if not line.lstrip().startswith('"')]  # a text has no second line
    assert max(map(len, breakable)) <= 120


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_no_comment_is_lost_wherever_it_stands(spec):
    text = spec.read_text(encoding="utf-8")
    draw = random.Random(spec.stem)
    for _ in range(5):
        commented = _with_comments(text, draw)
        once = format_text(commented)
        assert [one.text for one in comments(once)] == [one.text for one in comments(commented)]
        assert parse(Source("", once)) == parse(Source("", text))
        assert format_text(once) == once


def _with_comments(text: str, draw: random.Random) -> str:
    """A comment behind some of the words and brackets; each ends its line."""
    pieces = re.split(r'("[^"\n]*"|#[^\n]*|\d+\.\d+(?:e\d+)?|\w+|[{}()\[\]])', text)
    added = [f"{piece} # note {index}\n" if piece.strip() and not piece.startswith("#") and draw.random() < 0.1 else piece for index, piece in enumerate(pieces)]
    return "".join(added)
