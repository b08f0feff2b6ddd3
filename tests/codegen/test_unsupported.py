"""What the torch target cannot compile is a diagnostic at the construct, never wrong code. One spec and one pinned text per code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsec.diagnostics import Source, SpecError
from sparsec.pipeline import Compilation
from sparsec.render import render_all

HERE = Path(__file__).parent
SPECS = sorted((HERE / "unsupported").glob("*.sparse"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_construct_beyond_the_target_is_named_with_its_place_and_a_way_out(path: Path) -> None:
    source = Source(path.name, path.read_text())
    with pytest.raises(SpecError) as caught:
        Compilation(source).plan
    assert caught.value.diagnostics[0].code == path.stem
    assert render_all(caught.value.diagnostics, source) + "\n" == path.with_suffix(".txt").read_text()


def test_every_code_of_the_generator_has_a_spec() -> None:
    folder = HERE.parents[1] / "sparsec" / "codegen"
    codes = {code for path in folder.rglob("*.py") for code in re.findall(r'"(S9\d\d)"', path.read_text())}
    assert codes == {path.stem for path in SPECS}
