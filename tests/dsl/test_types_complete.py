"""Every expression of every shipped method has a type, as written and after specialisation."""

from pathlib import Path

import pytest

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.check import check
from sparsec.dsl.checked import Checked
from sparsec.dsl.params import ParamTable
from sparsec.dsl.parser import parse
from sparsec.dsl.specialise import specialise

METHODS = sorted((Path(__file__).parents[2] / "methods").glob("*.sparse"))


def untyped(checked: Checked) -> list[t.Node]:
    nodes = (node for node in t.walk(checked.file) if isinstance(node, t.Expr))
    return [node for node in nodes if id(node) not in checked.types or checked.type_of(node).kind == "unknown"]


def checked(path: Path) -> Checked:
    source = Source(path.name, path.read_text(encoding="utf-8"))
    return check(parse(source), source)


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_every_expression_of_a_method_has_a_type(path):
    assert untyped(checked(path)) == []


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_a_method_specialised_to_any_one_choice_checks_again(path):
    method = checked(path)
    table = ParamTable.of(method)
    for name in table.static_names:
        for value in table.params[name].choices or (("true", "false") if table.params[name].unit == "bool" else ()):
            special = specialise(method, table.static_values({name: value}))
            assert untyped(check(special, method.source, strict=False)) == [], f"{name} = {value}"
