"""The ensures of the shipped methods hold on random tensors, and a page bound that is none is caught with its line."""

from __future__ import annotations

import pytest
import torch

from sparsec.diagnostics import Source
from sparsec.dsl.check import check
from sparsec.dsl.params import ParamTable
from sparsec.dsl.parser import parse
from sparsec.dsl.source import load_source
from sparsec.reference import EnsureFailure, Program, Sequence
from sparsec.reference.storage import Inputs
from sparsec.replay import ReplayRequest, model_facts
from sparsec_runtime.rope import Rope

LAYERS, HEADS, GROUP, CHANNELS, PROMPT, TOKENS = 4, 2, 2, 8, 40, 56
PARAMS = {
    "dense": {},
    "streamingllm": {"budget": 12, "interval": 2},
    "h2o": {"budget": 12, "interval": 3},
    "snapkv": {"budget": 12, "window": 4},
    "pyramidkv": {"budget": 12, "window": 4},
    "ada_snapkv": {"budget": 12, "window": 4},
    "tova": {"budget": 12},
    "quest": {"page_size": 4, "budget": 12, "dense": 1},
    "omnikv": {"filters": frozenset({0, 2}), "budget": 8, "sinks": 2, "window": 4},
    "kivi": {"block": 4, "residual": 8},
}


def failures(source: Source, params: dict[str, object], chunk: int | None = None) -> list[EnsureFailure]:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(LAYERS, TOKENS, heads, CHANNELS, generator=generator) for heads in (HEADS * GROUP, HEADS, HEADS))
    rope = Rope.plain(1e4, CHANNELS)
    facts = model_facts(ReplayRequest(q, k, v, PROMPT, chunk, 0, False, rope, ()))
    checked = check(parse(source), source, facts)
    program = Program.of(checked.method, ParamTable.of(checked).resolve(params, facts, PROMPT), facts)
    sequence = Sequence(program, Inputs(q, k, v, rotated=False, rope=rope), PROMPT, check_ensures=True)
    sequence.prefill(chunk)
    for _ in range(TOKENS - PROMPT):
        sequence.decode()
    return sequence.failures


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("chunk", [None, 7])
def test_the_ensures_of_a_shipped_method_hold(name: str, chunk: int | None) -> None:
    assert failures(load_source(name), PARAMS[name], chunk) == []


def test_a_page_bound_that_is_no_upper_bound_is_caught_with_its_line() -> None:
    good = load_source("quest")
    wrong = Source(good.path, good.text.replace("kmax[p, h, c]: model = max[t in p]", "kmax[p, h, c]: model = mean[t in p]"))
    assert wrong.text != good.text
    found = failures(wrong, PARAMS["quest"])
    line = next(n for n, text in enumerate(wrong.text.splitlines(), 1) if "bound is sound" in text)
    assert {(failure.text, failure.line) for failure in found} == {("bound is sound", line)}
    assert {failure.layer for failure in found} == {1, 2, 3} and min(failure.step for failure in found) == 1


def test_a_burst_that_drops_the_window_is_caught_at_the_step_of_the_burst() -> None:
    good = load_source("h2o")
    wrong = Source(good.path, good.text.replace("evict keep recent(recent) then top", "evict keep recent(1) then top"))
    found = failures(wrong, PARAMS["h2o"])
    assert {failure.text for failure in found} == {"window survives"}
    assert {failure.step for failure in found} <= {0, 3, 6, 9, 12, 15}
