"""Requests of one decode batch may look back over windows of different lengths."""

from __future__ import annotations

import pytest
from engines import drain, ids_of, prompt, tiny_model
from sparsec_runtime.engine import Engine
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.sampler import SamplingParams

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

SPEC = """sparse 1
method looks_back {
  param budget: tokens in 16.. = 20
  param window: tokens in 1..16 = 4
  on end_of_prompt, finish_step when len > budget {
    let votes[t, h] = max[g](mean[i in last(window)](probs[i, h, g, t]))
    evict keep recent(1) then top[t](votes[t, h]) upto budget
  }
}
"""


@pytest.fixture(scope="module")
def method(tmp_path_factory):
    path = tmp_path_factory.mktemp("specs") / "looks_back.sparse"
    path.write_text(SPEC)
    return load_manager(Compilation.load(str(path), model=from_shape(tiny_model().shape)))


def run(method, requests: list[tuple[list[int], dict[str, int]]]) -> list[list[int]]:
    made = Engine(method, tiny_model(), EngineOptions(chunk=32, memory_tokens=1024))
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    names = [made.add_request(tokens, sampling, params) for tokens, params in requests]
    outputs = drain(made)
    assert made.stats().pages.live == 0 and all(outputs[name][-1].error is None for name in names)
    return [ids_of(outputs[name]) for name in names]


def test_two_windows_in_one_decode_batch_give_what_each_gives_alone(method):
    requests = [(prompt(50, seed=1), {"window": 2}), (prompt(44, seed=2), {"window": 11}), (prompt(3, seed=3), {"window": 16})]
    assert run(method, requests) == [run(method, [request])[0] for request in requests]


def test_a_window_decides_what_is_kept(method):
    """So that the test above can fail: the same prompt with another window gives other tokens."""
    found = {tuple(run(method, [(prompt(60, seed=5), {"window": window})])[0]) for window in (1, 2, 4, 8, 16)}
    assert len(found) > 1
