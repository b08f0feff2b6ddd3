"""The drawing of results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from sparsec.bench.plot import COLOURS, MARKERS, Line, _looks, figure_of, lines_along, rows_of
from sparsec.bench.rows import append_row, read_rows
from sparsec.cli import main

FACTS = {"gpu": "NVIDIA H200", "run": "first", "config": "tiny", "fill": "synthetic"}
ROWS = [
    {"what": "decode", "method": "m", "params": {"budget": "8"}, "context": context, "batch": batch, "tok_s": 100.0 * batch, **FACTS}
    for context in (1024, 2048)
    for batch in (8, 2)
]
COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results" / "h200-3.jsonl"


def test_points_of_a_line_are_sorted_and_a_later_row_replaces_an_earlier():
    rows = rows_of([*ROWS, {**ROWS[0], "tok_s": 5.0}, {**ROWS[0], "batch": 64, "error": "no memory"}, {**ROWS[0], "what": "prefill"}])
    assert lines_along(rows, "batch", "context") == (
        Line("m budget=8", 1024, ((2, 200.0), (8, 5.0))), Line("m budget=8", 2048, ((2, 200.0), (8, 800.0))),
    )  # fmt: skip
    assert lines_along(rows, "context", "batch")[1] == Line("m budget=8", 8, ((1024, 5.0), (2048, 800.0)))


def test_rows_are_of_one_run_the_last_if_none_is_named():
    rows = [*ROWS, {**ROWS[0], "run": "second", "tok_s": 7.0}]
    assert [row["tok_s"] for row in rows_of(rows)] == [7.0]
    assert len(rows_of(rows, "first")) == 4
    with pytest.raises(ValueError, match="'third' has no .* first, second"):
        rows_of(rows, "third")


@pytest.mark.parametrize(
    ("other", "labels"),
    [
        ({"config": "large"}, {"m budget=8 (large)", "m budget=8 (tiny)"}), ({"fill": "prompt"}, {"m budget=8 (prompt)", "m budget=8 (synthetic)"}),
        ({"steps": 8}, {"m budget=8 (steps 256)", "m budget=8 (steps 8)"}), ({"steps": 256}, {"m budget=8"}),
    ],
)  # fmt: skip
def test_what_differs_in_more_than_method_and_size_is_another_series(other, labels):
    lines = lines_along([*ROWS, {**ROWS[0], **other}], "batch", "context")
    assert {line.label for line in lines} == labels


def test_the_committed_rows_make_a_figure_whose_series_can_be_told_apart():
    pytest.importorskip("matplotlib")
    rows = rows_of(read_rows(COMMITTED))
    figure = figure_of(rows)
    entries = figure.legends[0].get_lines()
    named = {(row["method"], str(row["params"])) for row in rows}
    assert len(entries) == len(named) == 13
    assert len({(entry.get_color(), entry.get_marker()) for entry in entries}) == 13
    by_batch, by_context = ([line for line in panel.get_lines() if not line.get_label().startswith("_")] for panel in figure.axes)
    for lines in (by_batch, by_context):
        assert sum(len(line.get_xdata()) for line in lines) == len(rows)
        assert all((line.get_linestyle() == "-") == (len(line.get_xdata()) > 1) for line in lines)
    assert sum(line.get_linestyle() == "-" for line in by_batch) == 2


def test_as_many_series_as_there_are_looks_differ():
    pytest.importorskip("matplotlib")
    looks = _looks(f"{n:03}" for n in range(len(COLOURS) * len(MARKERS)))
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == 220


def test_it_writes_a_png_into_a_folder_that_it_makes(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, png = tmp_path / "rows.jsonl", tmp_path / "not there" / "yet" / "rows.png"
    for row in ROWS:
        append_row(file, row)
    assert main(["bench", "plot", str(file), "--out", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert main(["bench", "plot", str(file), "--out", str(file / "rows.png")]) == 3
    assert "cannot write" in capsys.readouterr().err
    assert main(["bench", "plot", str(file), "--run", "other", "--out", str(png)]) == 2
    assert "run 'other'" in capsys.readouterr().err


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
