"""`sparsec bench` and its scripts as a user calls them, where there is no CUDA device."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from sparsec.bench.plan import read_plan
from sparsec.bench.rows import append_row, read_rows
from sparsec.bench.workload import Workload
from sparsec.cli import main

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CONFIG = "llama-3.1-8b-49k"
FIGURES = {"ms_per_step": 6.5, "tok_s": 1230.0, "floor_ms": 5.3, "ratio": 1.22, "kv_bytes": 2**30, "state_bytes": 0, "peak_bytes": 2**35, "kernels": 293, "idle_ms": 0.0068}


def script(name: str):
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@needs_no_cuda
def test_without_a_cuda_device_it_says_so_and_exits_3(capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert main(["bench", "decode", "snapkv", "--param", "budget=8192", "--out", str(out)]) == 3
    assert "CUDA" in capsys.readouterr().err
    assert not out.exists()


def test_a_row_that_the_run_has_is_not_measured_again(capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    work = Workload("snapkv", {"budget": "8192"})
    append_row(out, {**work.named("decode", CONFIG, "a"), **FIGURES})
    assert main(["bench", "decode", "snapkv", "--param", "budget=8192", "--out", str(out), "--run", "a"]) == 0
    text = capsys.readouterr().out
    assert "measured before in run a" in text and "6.5 ms/step" in text and "32.0 GiB at the peak" in text and "idle for 7 us" in text
    assert len(read_rows(out)) == 1


@needs_no_cuda
@pytest.mark.parametrize("other", [["--run", "b"], ["--batch", "9"], ["--param", "window=16"], ["--config", "llama-3.1-8b"], ["--fill", "prompt"], ["--steps", "8"],
    ["--repetitions", "1"]])  # fmt: skip
def test_what_differs_in_a_field_of_the_key_is_measured(tmp_path, other):
    out = tmp_path / "rows.jsonl"
    append_row(out, {**Workload("snapkv", {"budget": "8192"}).named("decode", CONFIG, "a"), **FIGURES})
    assert main(["bench", "decode", "snapkv", "--param", "budget=8192", "--out", str(out), "--run", "a", *other]) == 3


def test_a_method_may_be_named_by_an_option_and_must_be_named_once(capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    append_row(out, {**Workload("dense").named("decode", CONFIG, "a"), **FIGURES})
    assert main(["bench", "decode", "--batch", "8", "--method", "dense", "--out", str(out), "--run", "a"]) == 0
    assert "measured before" in capsys.readouterr().out
    for wrong in ([], ["dense", "--method", "dense"]):
        with pytest.raises(SystemExit):
            main(["bench", "decode", *wrong])


@needs_no_cuda
def test_a_row_with_an_error_is_tried_again(tmp_path):
    out = tmp_path / "rows.jsonl"
    append_row(out, {**Workload("dense").named("decode", CONFIG, "a"), "error": "no memory"})
    assert main(["bench", "decode", "dense", "--out", str(out), "--run", "a"]) == 3


@pytest.mark.parametrize(("argument", "value"), [("--batch", "0"), ("--context", "-1"), ("--steps", "0")])
def test_sizes_below_one_are_refused(capsys, argument, value):
    assert main(["bench", "decode", "dense", argument, value]) == 2
    assert f"{argument} {value}" in capsys.readouterr().err


def test_what_no_graph_or_gate_serves_is_refused_with_what_does(capsys):
    assert main(["bench", "decode", "dense", "--batch", "257"]) == 2
    assert "--batch 257" in capsys.readouterr().err
    assert main(["bench", "prefill", "dense", "--lengths", "-1"]) == 2
    assert "--lengths -1" in capsys.readouterr().err
    assert main(["bench", "kernels", "--only", "no such gate"]) == 2
    assert "  dense paged decode, 8 x 32K" in capsys.readouterr().err.splitlines()


def arguments(out: Path, only: str = "") -> argparse.Namespace:
    return argparse.Namespace(run="a", out=out, only=only, minutes=9.0, fill="synthetic", what="decode", plan=BENCHMARKS / "rows.toml")


def test_run_starts_behind_a_row_whose_process_died(monkeypatch, tmp_path):
    run, out, plan = script("run"), tmp_path / "rows.jsonl", read_plan(BENCHMARKS / "rows.toml")
    args, skipped = arguments(out, "kivi"), []

    def worker(command: list[str], deadline: float) -> str:
        skipped.append(set(map(int, command[-1].split(",")[1:])))
        todo = [number for number in run.wanted(args, plan) if number not in skipped[-1]]
        if len(skipped) == 1:
            append_row(out, {**run.name(args, plan, plan.rows[todo[0]]), **FIGURES})
            run.in_progress(out).write_text(str(todo[1]))
            return "the process that measured it ended with code -6"
        for number in todo:
            append_row(out, {**run.name(args, plan, plan.rows[number]), **FIGURES})
        return ""

    monkeypatch.setattr(run, "worker", worker)
    assert run.lead(args, plan) == 0
    rows = read_rows(out)
    assert [("error" in row) for row in rows] == [False, True, False, False]
    assert "code -6" in rows[1]["error"]
    assert [len(numbers) for numbers in skipped] == [0, 2]
    assert [run.name(args, plan, plan.rows[number])["params"] for number in run.wanted(args, plan)] == [rows[1]["params"]]


def test_run_expects_a_row_to_take_as_long_as_those_that_are_no_larger():
    run = script("run")
    taken = [(22 * 32768, 40.0), (2 * 131072, 14.0), (8 * 32768, 10.0)]
    expected = [run.expected(Workload("dense", context=context, batch=batch), taken) for context, batch in ((131072, 2), (32768, 64), (1024, 1))]
    assert expected == [run.SHARE * 14, run.SHARE * 40 * 64 / 22, run.SECONDS]


def test_run_measures_the_prompts_of_each_method_and_context_once(tmp_path):
    run, plan = script("run"), read_plan(BENCHMARKS / "rows.toml")
    args = argparse.Namespace(**{**vars(arguments(tmp_path / "rows.jsonl", "dense, ")), "what": "prefill"})
    named = [run.name(args, plan, plan.rows[number]) for number in run.wanted(args, plan)]
    assert [(row["what"], row["context"], row["batch"], row["fill"]) for row in named] == [("prefill", context, 1, "prompt") for context in (32768, 131072)]
    append_row(args.out, {**named[0], **FIGURES})
    assert [run.name(args, plan, plan.rows[number]) for number in run.wanted(args, plan)] == named[1:]


def test_run_stops_where_no_process_gets_as_far_as_a_row(monkeypatch, capsys, tmp_path):
    run, args = script("run"), arguments(tmp_path / "rows.jsonl")
    monkeypatch.setattr(run, "worker", lambda command, deadline: "the process that measured it ended with code 1")
    assert run.lead(args, read_plan(args.plan)) == 3
    assert "no row had begun" in capsys.readouterr().out


def test_table_writes_between_the_markers_and_nowhere_else(monkeypatch, tmp_path):
    out, readme = tmp_path / "rows.jsonl", tmp_path / "README.md"
    readme.write_text("before\n<!-- rows: begin -->\nold\n<!-- rows: end -->\nafter\n")
    facts = {"gpu": "NVIDIA H200", "versions": {"torch": "2.11.0"}, "commit": "abc1234", "command": "benchmarks/run.py a out", "dtype": "torch.bfloat16"}
    append_row(out, {**Workload("dense").named("decode", CONFIG, "a"), **FIGURES, **facts})
    monkeypatch.setattr(sys, "argv", ["table.py", str(out), "--readme", str(readme)])
    script("table").main()
    text = readme.read_text()
    assert text.startswith("before\n<!-- rows: begin -->\nRun `a`: NVIDIA H200; torch 2.11.0; commit abc1234")
    assert text.endswith("<!-- rows: end -->\nafter\n") and "old" not in text
    assert json.loads(out.read_text())["run"] == "a"


def test_gates_are_written_where_the_run_measured_some(monkeypatch, tmp_path):
    out, readme = tmp_path / "rows.jsonl", tmp_path / "README.md"
    marked = "<!-- rows: begin -->\n<!-- rows: end -->\n<!-- gates: begin -->\nold\n<!-- gates: end -->\nafter\n"
    facts = {"gpu": "NVIDIA H200", "versions": {"torch": "2.11.0"}, "commit": "abc1234", "command": "benchmarks/run.py a out", "dtype": "torch.bfloat16"}
    append_row(out, {**Workload("dense").named("decode", CONFIG, "a"), **FIGURES, **facts})
    monkeypatch.setattr(sys, "argv", ["table.py", str(out), "--readme", str(readme)])
    readme.write_text(marked)
    script("table").main()
    assert readme.read_text().endswith("<!-- gates: begin -->\nold\n<!-- gates: end -->\nafter\n")
    gate = {"what": "gate", "gate": "dense paged decode, 8 x 32K", "how": "ceiling", "target": 0.95, "measured": 0.96, "met": True}
    append_row(out, {**gate, "config": CONFIG, "run": "a", **facts})
    script("table").main()
    assert "| dense paged decode, 8 x 32K | ceiling | >= 0.95 | 0.96 | yes |" in readme.read_text() and "old" not in readme.read_text()


@needs_no_cuda
@pytest.mark.parametrize("what", ["prefill", "capacity"])
def test_prompts_and_capacity_need_a_device_too(capsys, tmp_path, what):
    out = tmp_path / "rows.jsonl"
    assert main(["bench", what, "snapkv", "--param", "budget=4096", "--out", str(out)]) == 3
    assert "CUDA" in capsys.readouterr().err and not out.exists()


def test_capacity_of_a_run_is_printed_beside_dense(capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    for work, tokens, residents in ((Workload("snapkv", {"budget": "4096"}, 131072, 1, "prompt"), 3000.0, 110), (Workload("dense", {}, 131072, 1, "prompt"), 150.0, 7)):
        named = {**work.named("capacity", CONFIG, "a"), "batch": "largest", "reserved_tokens": 2048}
        append_row(out, {**named, **FIGURES, "tok_s": tokens, "residents": residents})
    assert main(["bench", "capacity", "snapkv", "--param", "budget=4096", "--out", str(out), "--run", "a"]) == 0
    text = capsys.readouterr().out
    assert "20.0x the throughput of dense, with 15.7x its residents" in text
    assert main(["bench", "capacity", "dense", "--out", str(out), "--run", "a"]) == 0
    text = capsys.readouterr().out
    assert text.count("7 residents") == 1 and "its residents" not in text


def test_a_directory_of_a_model_gives_the_config_its_name(capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    append_row(out, {**Workload("dense").named("decode", "my-model", "a"), **FIGURES})
    assert main(["bench", "decode", "dense", "--load-format", str(tmp_path / "my-model"), "--out", str(out), "--run", "a"]) == 0
    assert "measured before" in capsys.readouterr().out
