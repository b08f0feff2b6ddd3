"""Specs of methods that are not shipped: each checks clean, or gives exactly the diagnostics pinned beside it."""

from pathlib import Path

import pytest

from sparsec.diagnostics import Source, SpecError
from sparsec.dsl.check import check
from sparsec.dsl.parser import parse
from sparsec.render import render_all

FOLDER = Path(__file__).parent
DRAFTS = sorted(FOLDER.glob("*.sparse"))


def found(path: Path) -> str:
    source = Source(path.name, path.read_text(encoding="utf-8"))
    try:
        return render_all(check(parse(source), source).warnings, source)
    except SpecError as error:
        return render_all(error.diagnostics, source)


@pytest.mark.parametrize("path", DRAFTS, ids=lambda path: path.stem)
def test_a_draft_gives_its_pinned_diagnostics_or_none(path: Path) -> None:
    pinned = path.with_suffix(".txt")
    expected = pinned.read_text(encoding="utf-8") if pinned.exists() else ""
    assert found(path) == expected.rstrip("\n")


def test_every_pinned_text_belongs_to_a_draft() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} <= {path.stem for path in DRAFTS}


def test_most_drafts_check_clean() -> None:
    clean = [path for path in DRAFTS if not path.with_suffix(".txt").exists()]
    assert len(clean) > len(DRAFTS) // 2
