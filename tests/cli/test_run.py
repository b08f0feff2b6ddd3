"""`sparsec run` as a user calls it, on a tiny model with random weights."""

from __future__ import annotations

import json

import pytest

from sparsec.cli import main

METHODS = ("dense", "streamingllm", "h2o", "snapkv", "pyramidkv", "ada_snapkv", "tova", "quest", "omnikv", "kivi")
DUMMY = ["--model", "tiny-llama", "--load-format", "dummy", "--dtype", "float32", "--ignore-eos"]
KEYS = {
    "method", "model", "params", "prompt_tokens", "new_tokens", "prefill_tokens_per_s", "decode_tokens_per_s", "kv_bytes", "kv_bytes_peak",
    "state_bytes", "kv_bytes_dense", "tokens_evicted", "text", "token_ids", "text_dense", "token_ids_dense", "device", "decode_graphs", "eager_because",
}  # fmt: skip


def run_json(capsys, *arguments: str) -> dict:
    assert main(["run", *arguments, *DUMMY, "--stats", "json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_beside_dense_and_reports_one_object(capsys, method):
    budget = {"dense": [], "kivi": ["--param", "block=16"]}.get(method, ["--param", "budget=400"])
    stats = run_json(capsys, method, "--prompt", "a long day " * 12, "--max-tokens", "8", "--compare", "dense", *budget)
    assert set(stats) == KEYS
    assert stats["method"] == method and stats["new_tokens"] == len(stats["token_ids"]) == 8
    if method != "kivi":
        assert stats["token_ids"] == stats["token_ids_dense"]
        assert stats["kv_bytes"] == stats["kv_bytes_dense"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_dtype_is_that_of_the_kv(capsys, dtype):
    held = {}
    for name in (dtype, "float32"):
        assert main(["run", "dense", *DUMMY[:4], "--ignore-eos", "--dtype", name, "--prompt", "a day", "--max-tokens", "4", "--stats", "json"]) == 0
        held[name] = json.loads(capsys.readouterr().out.splitlines()[-1])["kv_bytes"]
    assert 2 * held[dtype] == held["float32"]


def test_a_budget_in_percent_is_a_share_of_the_prompt(capsys):
    stats = run_json(capsys, "snapkv", "--raw", "--prompt", "x" * 200, "--max-tokens", "2", "--param", "budget=25%")
    assert stats["params"]["budget"] == 50
    assert stats["tokens_evicted"] == 150


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["h2o", "--param", "bugdet=5"], "did you mean"),
        (["h2o", "--param", "budget=0"], "at least 1"),
        (["h2o", "--param", "budget"], "NAME=VALUE"),
        (["kivi", "--param", "block=32"], "choose one of 4, 8, 16"),
        (["h2oo"], "h2o"),
        (["h2o", "--max-tokens", "0"], "max_tokens"),
        (["h2o", "--prompt-file", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_wrong_command_line_names_what_is_wrong_and_exits_2(capsys, arguments, message):
    assert main(["run", *arguments, "--prompt", "hi", *DUMMY] if "--prompt-file" not in arguments else ["run", *arguments, *DUMMY]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("device", "message"), [("gpu9", "use cpu, cuda or auto"), ("cuda", "--device cpu")])
def test_a_device_that_is_not_there_exits_3_and_says_what_to_do(capsys, monkeypatch, device, message):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["run", "dense", "--prompt", "hi", "--device", device, "--model", "/no/such/model"]) == 3
    assert message in capsys.readouterr().err


def test_a_run_on_a_cpu_says_so_and_why_no_graph_was_used(capsys):
    stats = run_json(capsys, "dense", "--prompt", "hi", "--max-tokens", "2", "--device", "cpu")
    assert stats["device"] == "cpu" and stats["decode_graphs"] is False and stats["eager_because"] == "the model lies on cpu"


def test_a_model_that_is_not_there_exits_3_and_says_what_to_do(capsys):
    assert main(["run", "dense", "--model", "/no/such/model", "--prompt", "hi"]) == 3
    assert "/no/such/model" in capsys.readouterr().err


def test_a_wrong_spec_exits_1_with_its_diagnostics(capsys, tmp_path):
    spec = tmp_path / "wrong.sparse"
    spec.write_text('sparse 1\nmethod wrong "w" {\n  on finish_step { evict keep recnt(4) }\n}\n')
    assert main(["run", str(spec), "--prompt", "hi", *DUMMY]) == 1
    assert "error[S" in capsys.readouterr().err


def test_the_report_names_bytes_and_evictions(capsys):
    assert main(["run", "streamingllm", "--raw", "--prompt", "y" * 300, "--param", "budget=32", "--max-tokens", "3", *DUMMY]) == 0
    text = capsys.readouterr().out
    assert "KV held" in text and "evicted" in text and "tokens/s" in text


def test_on_a_terminal_no_note_stands_where_the_text_begins(monkeypatch):
    """What a terminal shows: both streams in the order in which they were written, a carriage return going back to the line's start."""
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    assert main(["run", "dense", "--raw", "--prompt", "x" * 1500, "--max-tokens", "4", *DUMMY]) == 0
    written = shown.getvalue()
    assert "reading the prompt: 0/1500" in written
    text = written.split("\n\ndense on ")[0]
    assert text.rsplit("\r", 1)[1].strip() and "reading" not in text.rsplit("\r", 1)[1], "no carriage return comes behind the text's first token"
