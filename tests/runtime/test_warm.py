"""Requests of nobody that are served before the first one: they run what a request runs, and leave nothing."""

from __future__ import annotations

import pytest
from engines import METHODS, add, drain, engine, ids_of, prompt, tiny_model
from sparsec_runtime import warm
from sparsec_runtime.warm import serve_nobody

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager


@pytest.mark.parametrize("method", METHODS)
def test_they_leave_nothing(method, monkeypatch):
    monkeypatch.setattr(warm, "LONGEST", 96)
    read, plain = engine(method), engine(method)
    serve_nobody(read.model, read.manager)
    pages = read.manager.pages()
    assert pages.live == 0 and pages.free == pages.total and not read.manager._sequences
    for made in (read, plain):
        add(made, prompt(70, seed=1), 8)
    assert [ids_of(outputs) for outputs in drain(read).values()] == [ids_of(outputs) for outputs in drain(plain).values()]


def test_they_are_longer_than_default_budgets_and_as_long_as_the_pools_hold(monkeypatch):
    made, seen = engine("snapkv", params={}, chunk=512, memory_tokens=8192), []
    real = made.manager.commit_step

    def watched():
        real()
        seen.append([(sequence.length, int(sequence.rows.max())) for sequence in made.manager._sequences.values()][0])

    monkeypatch.setattr(made.manager, "commit_step", watched)
    serve_nobody(made.model, made.manager)
    ends = [pair for pair, after in zip(seen, [*seen[1:], (0, 0)]) if after[0] < pair[0]]
    assert [length for length, _ in ends] == [3840, 3835] and all(held == 2048 for _, held in ends)  # of a model of 4,096 positions
    seen.clear()
    small = engine("snapkv", params={}, chunk=512, memory_tokens=600)
    made.manager = small.manager
    monkeypatch.setattr(small.manager, "commit_step", lambda real=small.manager.commit_step: (real(), seen.append(max(s.length for s in small.manager._sequences.values()))))
    serve_nobody(small.model, small.manager)
    assert max(seen) <= 600 and max(seen) % 16 == 0 and max(seen) > 200


def test_one_that_fails_is_left_to_the_request_that_asks_for_it():
    model = tiny_model()
    kind = load_manager(Compilation.load("h2o", model=from_shape(model.shape)))
    failing = type("Failing", (kind,), {"end_of_prompt": lambda self, view: [][1]})
    manager = failing(model.shape, model.rope, model.dtype, "cpu", pool_tokens=6000)
    serve_nobody(model, manager)
    assert manager.pages().live == 0 and manager._step is None
