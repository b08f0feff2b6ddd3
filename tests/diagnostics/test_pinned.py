"""The exact text of every diagnostic: each `*.sparse` here is wrong and has its rendered diagnostics beside it.

`SPARSEC_UPDATE_PINNED=1 pytest tests/diagnostics` writes the texts anew; read the diff before you commit it.
"""

import json
import os
import re
from pathlib import Path

import pytest

from sparsec.diagnostics import Diagnostic, Source, SpecError
from sparsec.dsl.check import check
from sparsec.dsl.parser import parse
from sparsec.dsl.source import decode_source
from sparsec.render import render_all, to_json

HERE = Path(__file__).parent
SPECS = sorted(HERE.glob("*.sparse"))
CODE = re.compile(r"\b[SW]\d{3}\b")


def found_in(spec: Path) -> tuple[Source, tuple[Diagnostic, ...]]:
    try:
        source = decode_source(spec.name, spec.read_bytes())
        return source, check(parse(source), source).warnings
    except SpecError as error:
        return error.source, error.diagnostics


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_a_wrong_spec_gives_its_pinned_text(spec):
    source, diagnostics = found_in(spec)
    text = render_all(diagnostics, source) + "\n"
    pinned = spec.with_suffix(".txt")
    if os.environ.get("SPARSEC_UPDATE_PINNED") == "1":
        pinned.write_text(text, encoding="utf-8")
    assert pinned.exists(), f"no pinned text {pinned.name}: run with SPARSEC_UPDATE_PINNED=1 and read what it writes"
    assert text == pinned.read_text(encoding="utf-8")


@pytest.mark.parametrize("spec", [one for one in SPECS if CODE.match(one.stem)], ids=lambda spec: spec.stem)
def test_a_spec_that_is_named_by_a_code_gives_that_code(spec):
    _, diagnostics = found_in(spec)
    assert CODE.match(spec.stem).group() in {one.code for one in diagnostics}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_every_diagnostic_says_a_way_out_and_is_one_json_line(spec):
    source, diagnostics = found_in(spec)
    assert diagnostics, "a spec in this folder is wrong"
    for one in diagnostics:
        assert one.help or one.fixes, f"{one.code} says no way out"
        line = to_json(one, source)
        assert "\n" not in line
        read = json.loads(line)
        assert (read["code"], read["file"], read["line"]) == (one.code, spec.name, one.span.line)


def test_every_code_of_the_checker_has_a_pinned_wrong_spec():
    sources = (HERE.parent.parent / "sparsec" / "dsl").glob("*.py")
    codes = {code for path in sources for code in re.findall(r'"([SW]\d{3})"', path.read_text(encoding="utf-8"))}
    pinned = {code for path in HERE.glob("*.txt") for code in re.findall(r"^\w+\[([SW]\d{3})\]", path.read_text(encoding="utf-8"), re.M)}
    assert len(codes) > 40, "the codes are no longer written as plain strings"
    assert sorted(codes - pinned) == []
