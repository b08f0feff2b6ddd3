"""parse -> format -> parse gives the same tree, for generated and for shipped specs."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from trees import exprs, spec_files

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.format import format_file, format_text
from sparsec.dsl.layout import flat
from sparsec.dsl.parser import parse

ROOT = Path(__file__).parent.parent.parent
SPECS = sorted([*ROOT.glob("methods/*.sparse"), *ROOT.glob("tests/drafts/*.sparse")])
GENERATED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def parsed(text: str) -> t.SparseFile:
    return parse(Source("generated", text))


@GENERATED
@given(spec_files)
def test_a_generated_spec_comes_back_as_the_same_tree(file):
    assert parsed(format_file(file)) == file


@GENERATED
@given(spec_files)
def test_formatting_a_formatted_spec_changes_nothing(file):
    once = format_file(file)
    assert format_text(once) == once


@GENERATED
@given(exprs)
def test_parentheses_of_an_expression_keep_its_tree(expr):
    file = parsed(f"sparse 1\nmethod m {{ layers x = {flat(expr)} }}")
    assert file.method.items[0].value == expr


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_formatting_a_spec_keeps_its_tree(spec):
    text = spec.read_text(encoding="utf-8")
    assert parsed(format_text(text)) == parsed(text)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_every_span_covers_the_text_of_its_node(spec):
    text = spec.read_text(encoding="utf-8")
    for node in t.walk(parsed(text)):
        covered = text[node.span.start : node.span.end]
        if isinstance(node, t.Ident) and node.text != "set":
            assert covered == node.text
        assert covered.strip() == covered != "", f"{type(node).__name__} covers {covered!r}"
