"""`sparsec explain`, `sparsec methods` and the table of methods/README.md."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from sparsec.commands import check, compile, explain, methods
from sparsec.failures import CommandError
from sparsec.graph.estimate import Estimator
from sparsec.graph.values import resolve
from sparsec.model_facts import load_model_facts

README = Path(__file__).parents[2] / "methods" / "README.md"


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    for module in (check, compile, explain, methods):
        module.add_parser(subparsers).set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    return args.run(args)


def estimate(compilation, model: str, context: int, batch: int):
    facts = load_model_facts(model)
    params = resolve(compilation.checked, dict(compilation.params), facts.names(), context)
    return Estimator(compilation.special, params, facts).estimate(context, batch, (4096, context), None)


def test_the_table_in_the_methods_folder_is_up_to_date(capsys):
    command("explain", "--table")
    assert capsys.readouterr().out == README.read_text(encoding="utf-8"), "run: sparsec explain --table --out methods/README.md"


def test_facts_come_with_reasons_and_lines(capsys):
    assert command("explain", "h2o") == 0
    out = capsys.readouterr().out
    assert "no radix reuse, because rows are evicted at line" in out
    assert "min(prompt + new, budget +" in out


def test_a_model_adds_bytes_at_lengths_within_its_context(capsys):
    command("explain", "snapkv", "--model", "smollm2-135m", "--param", "budget=1024")
    out = capsys.readouterr().out
    assert "dense KV per token, all layers: 45 KiB" in out
    lengths = [line.split()[0] for line in out.split("\n") if line.strip().endswith("%")]
    assert lengths == ["4,096", "8,192"]


def test_json_holds_facts_graph_and_estimate(capsys):
    command("explain", "quest", "--model", "llama-3.1-8b", "--format", "json")
    page = json.loads(capsys.readouterr().out)
    assert page["facts"]["table"]["value"] == "shared"
    assert page["params"]["budget"] == 2048
    assert page["estimate"]["ideal_gain"] > 2
    assert any(node["kind"] == "SummaryNode" for node in page["graph"]["nodes"])


def test_a_drawing_goes_to_a_file(tmp_path, capsys):
    target = tmp_path / "graph.svg"
    command("explain", "kivi", "--format", "svg", "--out", str(target))
    assert target.read_text(encoding="utf-8").startswith("<svg")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("explain",), "wants a METHOD", 2),
        (("explain", "h2o", "--table"), "give it alone", 2),
        (("explain", "h2o", "--param", "budgt=5"), "budgt", 2),
        (("explain", "h2o", "--param", "budget=0", "--model", "tiny-llama"), "budget", 2),
        (("explain", "h2o", "--param", "budget=0"), "`budget` = 0: it must be tokens in 1", 2),
        (("explain", "h2o", "--param", "budget=8", "--param", "recent=9"), "`recent` = 9: it must be tokens in 1..8", 2),
        (("compile", "h2o", "--emit", "plan", "--param", "budget=0"), "`budget` = 0: it must be tokens in 1", 2),
        (("check", "h2o", "--param", "budget=0"), "`budget` = 0: it must be tokens in 1", 2),
        (("explain", "h2p"), "did you mean `h2o`", 3),
        (("explain", "h2o", "--model", "no-such-model"), "no model 'no-such-model'", 3),
    ],
)
def test_mistakes_on_the_command_line_are_explained(arguments, words, code):
    with pytest.raises(CommandError, match=words) as caught:
        command(*arguments)
    assert caught.value.exit_code == code


def test_methods_lists_every_shipped_method_with_its_facts(capsys):
    command("methods", "--format", "json")
    entries = {entry["name"]: entry for entry in map(json.loads, capsys.readouterr().out.strip().split("\n"))}
    assert entries["streamingllm"]["positions"] == "rank"
    assert entries["ada_snapkv"]["table"] == "head"
    assert [param["name"] for param in entries["h2o"]["params"]][:2] == ["budget", "recent"]


FLOORS = {  # milliseconds at 4.3 TB/s: the floors that the performance targets are stated against (batch 8, 32,768 tokens)
    "dense": ({}, 11.3), "snapkv": ({"budget": 8192}, 5.3), "streamingllm": ({"budget": 8192}, 5.3), "quest": ({}, 4.8),
    "pyramidkv": ({"budget": 8192}, 5.3), "omnikv": ({}, 5.0), "kivi": ({}, 4.8),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOORS)
def test_bytes_of_a_decode_step_give_the_known_floors(compiled, name):
    params, milliseconds = FLOORS[name]
    traffic = estimate(compiled(name, **params), "llama-3.1-8b-49k", 32768, 8).traffic
    assert traffic.total / 4.3e9 == pytest.approx(milliseconds, abs=0.06)


def test_query_heads_that_choose_for_themselves_may_read_more(compiled):
    together = estimate(compiled("quest"), "llama-3.1-8b", 32768, 8).traffic
    apart = estimate(compiled("quest", heads="query_head"), "llama-3.1-8b", 32768, 8).traffic
    assert apart.rows > 1.5 * together.rows


def test_a_gain_that_weights_swallow_is_a_warning(compiled):
    (warning,) = estimate(compiled("snapkv"), "llama-3.1-8b", 4096, 1).warnings
    assert "weights dominate" in warning
    assert estimate(compiled("dense"), "llama-3.1-8b", 4096, 1).warnings == ()


def test_two_bit_codes_hold_under_a_fifth_of_dense_at_length(compiled):
    held = estimate(compiled("kivi"), "llama-3.1-8b", 131072, 1).held[-1]
    assert 0.18 < held.after_prompt / held.dense < 0.2


def test_ragged_heads_hold_their_budget_on_average(compiled):
    held = estimate(compiled("ada_snapkv"), "llama-3.1-8b", 32768, 1).held[-1]
    assert held.after_prompt == 1024 * 131072
