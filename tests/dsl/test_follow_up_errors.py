"""A name that did not resolve is one error: what it may have meant is not reported a second time."""

from pathlib import Path

import pytest

from found import codes
from sparsec.diagnostics import Source, SpecError
from sparsec.dsl import tree as t
from sparsec.dsl.check import check
from sparsec.dsl.parser import parse

METHODS = sorted((Path(__file__).parents[2] / "methods").glob("*.sparse"))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("on finish_step { evict keep recnt(8) then top[t](max[h, c](K[t, h, c])) upto 64 }", ["S102"]),
        ("zone a\nzone b\non finish_step { move oldest(rows(a) // 8 * 8, a) to bb }", ["S107"]),
        ("on finish_step { let f[t] = f[t] + 1 evict keep top[t](f[t], 16) }", ["S507"]),
        ("param how: choice in {one, two} = one\non finish_step when hov == two { evict keep recent(4) }", ["S101"]),
        ("param n: tokens in 1..nn = 4\nparam m: tokens in 1..n = 2\n"
         "on finish_step { evict keep recent(m) then top[t](max[h, c](K[t, h, c])) upto n }", ["S101"]),
        ("on finish_step for layr > 2 { evict keep recent(4) }\non finish_step { evict keep recent(8) }", ["S101"]),
    ],
)
def test_a_misspelt_name_is_reported_once(body: str, found: list[str]) -> None:
    assert codes(body) == found


def test_what_is_wrong_besides_the_unknown_name_is_still_reported() -> None:
    twice = "on finish_step when layr > 2 { evict keep recent(4) evict keep recent(2) }"
    assert codes(twice) == ["S101", "S508"]
    assert codes("state total[t]: f32 = 0\non finish_step { evict keep recent(recnt) }") == ["S602", "S603", "S101"]


def _names(file: t.SparseFile) -> dict[int, t.Ident]:
    """Every name that an expression or a move uses, by where it stands; letters are left out."""
    found = {}
    for node in t.walk(file.method):
        name = node.name if isinstance(node, t.Ref | t.Call) else node.zone if isinstance(node, t.Move) else None
        if name is not None and len(name.text) > 1:
            found[name.span.start] = name
    return found


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_any_misspelt_name_of_a_shipped_method_gives_errors_of_names_alone(path: Path) -> None:
    text = path.read_text()
    for name in _names(parse(Source(path.name, text))).values():
        source = Source(path.name, f"{text[: name.span.end]}zz{text[name.span.end :]}")
        try:
            check(parse(source), source)
        except SpecError as error:
            found = {one.code for one in error.diagnostics}
            assert all(code.startswith("S1") for code in found), (name.text, name.span.line, found)
