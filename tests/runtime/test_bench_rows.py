"""The file of results, the plan of rows and the table made of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sparsec.bench.machine import commit
from sparsec.bench.plan import read_plan
from sparsec.bench.rows import append_row, find_row, is_measured, read_rows
from sparsec.bench.table import markdown, replace_between
from sparsec.bench.workload import Workload

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
PLAN = read_plan(BENCHMARKS / "rows.toml")
FACTS = {
    "gpu": "NVIDIA H200", "versions": {"torch": "2.11.0", "triton": "3.6.0"}, "commit": "abc1234", "command": "/x/benchmarks/run.py a out",
    "dtype": "torch.bfloat16",
}  # fmt: skip


def measured(work: Workload, milliseconds: float, run: str = "a") -> dict[str, object]:
    floor = 5.0
    return {
        **work.named("decode", PLAN.config, run), **FACTS, "ms_per_step": milliseconds, "tok_s": work.batch / milliseconds * 1e3, "floor_ms": floor,
        "ratio": milliseconds / floor, "kv_bytes": 1060 * 2**20, "kernels": 293, "idle_ms": 0.0068,
    }  # fmt: skip


def cells(label: str, size: str, text: str) -> dict[str, str]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return next(dict(zip(rows[0], row)) for row in rows if row[0] == label and row[2] == size)


def planned(label: str, size: tuple[int, int]) -> Workload:
    return next(row.work for row in PLAN.rows if row.label == label and (row.work.context, row.work.batch) == size)


def test_a_line_that_was_cut_short_is_no_row_and_goes_with_the_next(tmp_path):
    file = tmp_path / "rows.jsonl"
    append_row(file, {"n": 1})
    with file.open("a") as cut:
        cut.write('{"n": 2, "ms')
    assert read_rows(file) == [{"n": 1}]
    append_row(file, {"n": 3})
    assert read_rows(file) == [{"n": 1}, {"n": 3}]


def test_a_measured_row_counts_before_a_later_error(tmp_path):
    named = Workload("dense").named("decode", PLAN.config, "a")
    rows = [{**named, "ms_per_step": 1.0}, {**named, "ms_per_step": 2.0}, {**named, "error": "no memory"}]
    assert find_row(rows, named)["ms_per_step"] == 2.0 and is_measured(rows, named)
    assert not is_measured(rows[2:], named)
    assert find_row(rows, Workload("dense", batch=9).named("decode", PLAN.config, "a")) is None


def test_params_of_a_row_are_compared_whatever_their_order():
    first, second = Workload("m", {"a": "1", "b": "2"}), Workload("m", {"b": "2", "a": "1"})
    assert is_measured([first.named("decode", PLAN.config, "r")], second.named("decode", PLAN.config, "r"))


def test_rows_of_another_protocol_are_other_rows():
    work = Workload("dense")
    rows = [replace(work, steps=8, repetitions=1).named("decode", PLAN.config, "r")]
    assert (rows[0]["repetitions"], rows[0]["warm_up"], rows[0]["steps"]) == (1, 32, 8)
    assert not is_measured(rows, work.named("decode", PLAN.config, "r"))
    for other in (replace(work, steps=8), replace(work, repetitions=1), replace(work, warm_up=1)):
        assert not is_measured([other.named("decode", PLAN.config, "r")], work.named("decode", PLAN.config, "r"))


@pytest.mark.parametrize("run", ["h200-2", "h200-3"])
def test_committed_rows_that_tell_no_protocol_are_of_the_usual_one(run):
    rows = read_rows(RESULTS / f"{run}.jsonl")
    assert rows and not any("steps" in row for row in rows)
    for planned_row in PLAN.rows:
        assert is_measured(rows, planned_row.work.named("decode", PLAN.config, run))
        assert not is_measured(rows, replace(planned_row.work, steps=8).named("decode", PLAN.config, run))
    work = Workload("snapkv", {"budget": "4096"}, context=131072, fill="prompt", repetitions=1)
    once = {**work.named("capacity", PLAN.config, run), "batch": "largest", "reserved_tokens": 2048}
    assert is_measured(rows, once) and not is_measured(rows, {**once, "repetitions": 3})


def test_a_prompt_has_no_window_and_one_without_a_prompt_no_chunk():
    assert "chunk" not in Workload("dense").named("decode", PLAN.config, "r")
    prompt = Workload("dense", fill="prompt")
    assert prompt.named("decode", PLAN.config, "r")["chunk"] == 8192
    named = prompt.named("prefill", PLAN.config, "r")
    assert named["repetitions"] == 3 and not {"warm_up", "steps"} & named.keys()


def test_the_plan_has_every_row_of_the_performance_notes():
    assert len(PLAN.rows) == 18
    assert {(row.work.context, row.work.batch) for row in PLAN.rows} == {(32768, 8), (32768, 22), (32768, 64), (131072, 2)}
    assert all(row.stretch < row.must for row in PLAN.rows)
    assert sum(row.seed is not None for row in PLAN.rows) == 11


def test_a_plan_with_a_row_twice_is_refused(tmp_path):
    file = tmp_path / "rows.toml"
    row = '[[row]]\nlabel = "dense"\nmethod = "dense"\ncontext = 5\nbatch = 1\n'
    file.write_text('config = "tiny"\n' + row + row)
    with pytest.raises(ValueError, match="twice"):
        read_plan(file)


def test_the_table_says_what_was_met_beside_dense_and_the_seed():
    rows = [measured(planned("dense", (32768, 8)), 12.4), measured(planned("SnapKV", (32768, 8)), 6.58), measured(planned("Quest", (131072, 2)), 7.41)]
    rows += [measured(planned("H2O", (32768, 8)), 7.0)]
    text = markdown(PLAN, rows, "a")
    snapkv = cells("SnapKV", "32,768 x 8", text)
    assert (snapkv["ms/step"], snapkv["our dense ms"], snapkv["seed ms"], snapkv["met"]) == ("6.58", "12.40", "10.4", "must")
    assert snapkv["KV MiB a request"] == "1,060" and snapkv["params"] == "budget 8192"
    assert snapkv["idle us"] == "7" and cells("KIVI 2 bit", "32,768 x 8", text)["idle us"] == "-"
    assert cells("dense", "32,768 x 8", text)["our dense ms"] == "-"
    assert cells("H2O", "32,768 x 8", text)["met"] == "stretch"
    assert cells("Quest", "131,072 x 2", text)["met"] == "no, +14.0%"
    assert cells("KIVI 2 bit", "32,768 x 8", text)["ms/step"] == "-"


def test_the_table_says_where_it_was_measured_and_why_a_row_is_missing():
    failed = {**planned("TOVA", (32768, 8)).named("decode", PLAN.config, "a"), **FACTS, "error": "no graph decodes this method: why"}
    text = markdown(PLAN, [measured(planned("dense", (32768, 8)), 12.4), failed], "a")
    assert text.startswith("Run `a`: NVIDIA H200; torch 2.11.0, triton 3.6.0; commit abc1234; ")
    assert "bfloat16" in text and "`benchmarks/run.py`" in text
    assert "- TOVA, 32,768 x 8: no graph decodes this method: why" in text


def test_rows_of_another_run_are_not_in_the_table():
    with pytest.raises(ValueError, match="'a' has measured none"):
        markdown(PLAN, [measured(planned("dense", (32768, 8)), 12.4, run="b")], "a")


def test_a_text_without_markers_is_not_written():
    with pytest.raises(ValueError, match="rows: begin"):
        replace_between("no markers", "rows", "table")


def test_a_commit_is_dirty_where_tracked_files_differ(tmp_path, monkeypatch):
    import subprocess

    monkeypatch.delenv("COMMIT", raising=False)
    for command in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    clean = commit(tmp_path)
    assert len(clean) >= 7 and not clean.endswith("-dirty")
    (tmp_path / "file").write_text("one")
    subprocess.run(["git", "add", "file"], cwd=tmp_path, check=True)
    assert commit(tmp_path) == f"{clean}-dirty"
    monkeypatch.setenv("COMMIT", "given")
    assert commit(tmp_path) == "given"
