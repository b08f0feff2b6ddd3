"""The drawing of results."""

from __future__ import annotations

import importlib.util

import pytest
from sparsec.bench.plot import lines_along
from sparsec.bench.rows import append_row
from sparsec.cli import main

ROWS = [
    {"what": "decode", "method": "m", "params": {"budget": "8"}, "context": context, "batch": batch, "tok_s": 100.0 * batch, "gpu": "NVIDIA H200"}
    for context in (1024, 2048)
    for batch in (8, 2)
]


def test_points_of_a_line_are_sorted_and_a_later_row_replaces_an_earlier():
    rows = [*ROWS, {**ROWS[0], "tok_s": 5.0}, {**ROWS[0], "batch": 64, "error": "no memory"}, {**ROWS[0], "what": "prefill"}]
    lines = lines_along(rows, "batch", "context")
    assert lines.points == {"m budget=8, context 1,024": ((2, 200.0), (8, 5.0)), "m budget=8, context 2,048": ((2, 200.0), (8, 800.0))}


def test_it_writes_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    file, png = tmp_path / "rows.jsonl", tmp_path / "rows.png"
    for row in ROWS:
        append_row(file, row)
    assert main(["bench", "plot", str(file), "--out", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_without_the_library_it_names_the_extra(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    append_row(file, ROWS[0])
    assert main(["bench", "plot", str(file), "--out", str(tmp_path / "rows.png")]) == 3
    assert "sparsec[bench]" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "", '{"what": "decode", "error": "no"}\n'])
def test_a_file_without_measured_rows_is_refused(tmp_path, capsys, text):
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_text(text)
    assert main(["bench", "plot", str(file), "--out", str(tmp_path / "rows.png")]) == 2
    assert str(file) in capsys.readouterr().err
