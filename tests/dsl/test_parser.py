"""The grammar is free of conflicts, reads every spec, and says in words what it cannot read."""

from importlib.resources import files
from pathlib import Path

import pytest
from lark import Lark

from sparsec.diagnostics import Diagnostic, Source, SpecError
from sparsec.dsl import expected
from sparsec.dsl import tree as t
from sparsec.dsl.parser import _BUILDERS, grammar, parse

ROOT = Path(__file__).parent.parent.parent
SPECS = sorted([*ROOT.glob("methods/*.sparse"), *ROOT.glob("tests/drafts/*.sparse")])


def errors(text: str) -> list[Diagnostic]:
    with pytest.raises(SpecError) as caught:
        parse(Source("test.sparse", text))
    return list(caught.value.diagnostics)


def error_in_hook(statement: str) -> Diagnostic:
    found = errors(f"sparse 1\nmethod m {{\n  on finish_step {{\n{statement}\n  }}\n}}\n")
    assert len(found) == 1
    return found[0]


def test_the_grammar_has_no_conflict_that_lark_would_settle_silently():
    text = files("sparsec.dsl").joinpath("sparse.lark").read_text(encoding="utf-8")
    Lark(text, parser="lalr", lexer="basic", strict=True)


def test_every_rule_has_a_builder_and_every_builder_a_rule():
    named = {rule.alias or str(rule.origin.name) for rule in grammar().rules if rule.alias or not rule.options.expand1}
    kept = {name for name in named if not name.startswith("_")}
    assert kept == set(_BUILDERS)


def test_every_terminal_has_a_word_for_people():
    symbols = {one.name for one in grammar().terminals if not one.pattern.value.isidentifier()} - {"COMMENT", "WS"}
    assert symbols <= expected._SYMBOLS.keys() | expected._WORDS.keys()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_a_spec_parses(spec):
    assert parse(Source(spec.name, spec.read_text(encoding="utf-8"))).version == 1


def test_sums_lean_left_and_products_bind_tighter():
    file = parse(Source("", "sparse 1 method m { layers x = a - b * c - d }"))
    value = file.method.items[0].value
    a, b, c, d = (t.Ref(t.Ident(name)) for name in "abcd")
    assert value == t.Binary("-", t.Binary("-", a, t.Binary("*", b, c)), d)


def test_a_reserved_word_that_only_starts_a_name_is_no_reserved_word():
    file = parse(Source("", "sparse 1 method m { layers keyed = maximal + inner }"))
    assert file.method.items[0].name.text == "keyed"


def test_all_errors_of_a_file_are_reported_in_order():
    found = errors("sparse 1\nmethod m {\n  param a tokens = 1\n  zone 3\n  on finish_step { evict a let x = }\n}\n")
    assert [(one.span.line, one.code) for one in found] == [(3, "S001"), (4, "S001"), (5, "S001"), (5, "S001")]


@pytest.mark.parametrize(
    ("statement", "code", "message", "help_text"),
    [
        ("let x = + 1", "S001", "`+` does not fit here", "expected an expression"),
        ("evict recent(3)", "S001", "`recent` does not fit here", "expected `keep`"),
        ("x 3", "S001", "`3` does not fit here", "expected `+=`, `=` or `[`"),
        ("let x = 3 3", "S001", "`3` does not fit here", "expected an operator, a statement or `}`"),
        ("let x == 3", "S001", "`==` compares; here a value is defined", "write `=`"),
        ("when a = 3 { }", "S001", "`=` defines; here values are compared", "write `==`"),
        ("let key = 3", "S006", "`key` is a reserved word and cannot be a name here", "choose another name, such as `my_key`"),
        ("while a { }", "S007", "the language has no `while`", "the language has no loops"),
        ("return x", "S007", "the language has no `return`", "a hook returns nothing"),
        ('let x = "a', "S005", "this text is not closed", "end it with"),
    ],
)
def test_a_parse_error_says_what_stood_there_and_what_could(statement, code, message, help_text):
    found = error_in_hook(statement)
    assert (found.code, found.message) == (code, message)
    assert found.help.startswith(help_text)


def test_an_unclosed_brace_names_where_it_was_opened():
    found = errors("sparse 1\nmethod m {\n  on finish_step {\n    evict keep all\n  state s[t]: f32 = 0\n}\n")
    assert found[0].message == "`state` starts a declaration, but the `{` of line 3, column 18 is still open"


def test_another_version_is_reported_before_anything_that_it_might_allow():
    found = errors("# a comment\nsparse 7 anything { goes }")
    assert [one.code for one in found] == ["S003"]
    assert found[0].fixes[0].text == "sparse 1"


def test_a_fix_applied_to_the_text_makes_its_error_go_away():
    text = "sparse 1\nmethod m { on finish_step when len = 3 { let x == 1 } }"
    for one in reversed(errors(text)):
        fix = one.fixes[0]
        text = text[: fix.span.start] + fix.text + text[fix.span.end :]
    assert parse(Source("", text)).method.name.text == "m"
