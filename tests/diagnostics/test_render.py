"""How a diagnostic looks: carets under wide characters, cut lines, spans over several lines, nothing a terminal would obey."""

import json

from sparsec.diagnostics import Diagnostic, Fix, Severity, Source
from sparsec.dsl.limits import span_at
from sparsec.render import WIDTH, render, render_all, to_json


def shown(text: str, marked: str, **more) -> list[str]:
    start = text.index(marked)
    return render(Diagnostic("S999", "wrong", span_at(text, start, start + len(marked)), **more), Source("a.sparse", text)).split("\n")


def test_the_form_is_that_of_the_language_reference():
    text = "\n" * 7 + "    env[t, h, c] = K[t, h, c]\n"
    assert shown(text, "t, h", help="write `p`") == [
        "error[S999]: wrong",
        " --> a.sparse:8:9",
        "  |",
        "8 |     env[t, h, c] = K[t, h, c]",
        "  |         ^^^^",
        "  = help: write `p`",
    ]


def test_the_gutter_is_as_wide_as_the_line_number():
    assert shown("\n" * 99 + "x", "x")[1:5] == ["   --> a.sparse:100:1", "    |", "100 | x", "    | ^"]


def test_carets_stand_under_tabs_wide_and_combining_characters():
    assert shown("\tlet x", "x")[3:] == ["1 |     let x", "  |         ^"]
    assert shown("漢字 x", "x")[3:] == ["1 | 漢字 x", "  |      ^"]
    assert shown("漢字 x", "漢字")[4] == "  | ^^^^"
    assert shown("e\u0301 x", "x")[4] == "  |   ^"


def test_a_long_line_is_cut_around_its_mark():
    lines = shown("a" * 5000 + "XYZ" + "b" * 5000, "XYZ")
    line, marks = lines[3].removeprefix("1 | "), lines[4].removeprefix("  | ")
    assert len(line) <= WIDTH + 2
    assert line[marks.index("^") : marks.rindex("^") + 1] == "XYZ"
    assert line[0] == line[-1] == "\u2026"


def test_a_span_over_several_lines_shows_its_first_and_its_last():
    assert shown("on a {\n  x\n  y\n}\n", "on a {\n  x\n  y\n}")[2:] == ["  |", "1 | on a {", "  | ^^^^^^", "...", "4 | }", "  | ^"]
    assert shown("let x =\n  3\n", "x =\n  3")[2:] == ["  |", "1 | let x =", "  |     ^^^", "2 |   3", "  |   ^"]


def test_an_empty_span_at_the_end_of_the_file_has_one_caret():
    text = "method m {"
    lines = render(Diagnostic("S999", "wrong", span_at(text, 10, 10)), Source("a", text)).split("\n")
    assert lines[3:] == ["1 | method m {", "  |           ^"]


def test_an_empty_file_has_no_snippet():
    assert render(Diagnostic("S999", "wrong"), Source("a", "")).split("\n") == ["error[S999]: wrong", " --> a:1:1"]


def test_nothing_reaches_the_terminal_that_it_would_obey():
    hostile = "x\x1b[31m\u202e\x07"
    diagnostic = Diagnostic("S999", f"unknown {hostile}", span_at(hostile, 0, 1), f"not {hostile}")
    rendered = render(diagnostic, Source(hostile, hostile))
    assert all(char.isprintable() or char == "\n" for char in rendered)
    assert "<U+001B>" in rendered


def test_color_changes_nothing_but_escapes():
    text = "let x\n"
    diagnostic = Diagnostic("W801", "odd", span_at(text, 4, 5), "drop it", severity=Severity.WARNING)
    colored = render(diagnostic, Source("a", text), color=True)
    plain = render(diagnostic, Source("a", text))
    assert colored != plain
    for style in ("1;33", "1;34", "0"):
        colored = colored.replace(f"\x1b[{style}m", "")
    assert colored == plain


def test_a_fix_without_a_help_line_is_shown_as_one():
    text = "a = b"
    span = span_at(text, 2, 3)
    assert shown(text, "=", fixes=(Fix(span, "=="),))[-1] == "  = help: write `==`"


def test_all_diagnostics_come_in_source_order_with_a_line_between():
    text = "a b"
    first, second = (Diagnostic("S999", word, span_at(text, at, at + 1)) for word, at in (("one", 0), ("two", 2)))
    rendered = render_all([second, first], Source("a", text))
    assert [line for line in rendered.split("\n") if line.startswith("error")] == ["error[S999]: one", "error[S999]: two"]
    assert rendered.count("\n\n") == 1


def test_json_gives_places_that_end_exclusively_and_every_fix():
    text = "sparse 1\nlet x\n"
    span = span_at(text, 13, 14)
    read = json.loads(to_json(Diagnostic("S999", "two\nlines", span, "h", (Fix(span, "y"),)), Source("a", text)))
    assert (read["line"], read["column"], read["end_line"], read["end_column"]) == (2, 5, 2, 6)
    assert read["fixes"] == [{"line": 2, "column": 5, "end_line": 2, "end_column": 6, "text": "y"}]
    assert (read["message"], read["help"], read["severity"]) == ("two lines", "h", "error")
