"""Params and traces: legal, small, covering every choice, and the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsec.dsl import tree as t
from sparsec.failures import CommandError
from sparsec.verify.case import Case
from sparsec.verify.params import Range, draw, in_turn, largest
from sparsec.verify.ranges import range_of
from sparsec.verify.subject import Subject
from sparsec.verify.traces import KINDS, Shape, make_inputs

METHODS = sorted((Path(__file__).parents[2] / "methods").glob("*.sparse"))


def cases(path: Path, seeds: int) -> list[Case]:
    subject = Subject.load(str(path), {})
    return [subject.case(seed) for seed in range(seeds)]


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_every_drawn_value_lies_in_its_range(path: Path) -> None:
    for case in cases(path, 8):
        for param in case.method.of(t.Param):
            legal = range_of(param, case.method, case.params, case.facts)
            assert legal.holds(case.params[param.name.text]), param.name.text


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_a_few_seeds_cover_every_word_of_every_choice_and_both_bools(path: Path) -> None:
    drawn = cases(path, 6)
    for param in drawn[0].method.of(t.Param):
        name, unit = param.name.text, param.unit.text
        if unit in ("choice", "bool"):
            every = set(drawn[0].range_of(name, {}).choices) or {True, False}
            assert {case.params[name] for case in drawn} == every, name


def test_listed_values_take_turns_in_another_order_per_param() -> None:
    values = ("a", "b", "c")
    assert {in_turn("x", values, seed) for seed in range(3)} == set(values)
    orders = {tuple(in_turn(name, values, seed) for seed in range(3)) for name in "uvwxyz"}
    assert len(orders) > 1


def test_counts_are_drawn_near_their_lower_bound() -> None:
    legal = Range("tokens", 10, None, (), 1024)
    assert all(10 <= draw("n", legal, seed, layers=2) <= 34 for seed in range(50))


def test_a_size_that_cannot_reach_the_length_is_not_called_large() -> None:
    assert largest(Range("tokens", 1, 64, (), 8), at_least=100) is None
    assert largest(Range("tokens", 1, None, (), 8), at_least=100) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_makes_the_same_inputs(kind: str) -> None:
    one, other = (make_inputs(Shape(2, 2, 2, 8), kind, 20, 4, seed=3) for _ in range(2))
    assert all(torch.equal(getattr(one, part), getattr(other, part)) for part in "qkv")
    assert one.q.shape == (2, 24, 4, 8) and one.k.shape == one.v.shape == (2, 24, 2, 8)


def test_inputs_with_ties_repeat_keys() -> None:
    keys = make_inputs(Shape(1, 1, 1, 8), "ties", 40, 0, seed=1).k[0, :, 0]
    assert len(torch.unique(keys, dim=0)) < 30


def test_prompts_lie_below_at_and_above_the_thresholds() -> None:
    path = next(path for path in METHODS if "interval" in path.read_text())
    lengths = [inputs.prompt_len for case in cases(path, 6) for inputs in case.traces]
    assert 1 in lengths and max(lengths) > 40
    for case in cases(path, 6):
        assert case.traces[-1].prompt_len > max(size for size in case.sizes.values() if size <= 48)


def test_a_pinned_param_keeps_its_value_and_an_illegal_one_is_refused() -> None:
    path = next(path for path in METHODS if "param budget: tokens in 1.. = 1024" in path.read_text())
    assert Subject.load(str(path), {"budget": "5"}).case(0).params["budget"] == 5
    with pytest.raises(CommandError, match="budget=0"):
        Subject.load(str(path), {"budget": "0"}).case(0)
    with pytest.raises(CommandError, match="unknown param 'bodget'"):
        Subject.load(str(path), {"bodget": "5"})


def test_a_run_is_remembered_for_its_own_inputs_alone() -> None:
    """Inputs of a moment give their place in memory to the next ones: a run must not be found again by that place."""
    (case,) = cases(METHODS[0], 1)
    whole = case.traces[0]
    steps = len(case.reference(whole).steps)
    for seed in range(40):
        assert len(case.reference(whole.first(whole.tokens - 1).perturbed(seed)).steps) == steps - 1
        assert len(case.reference(whole.perturbed(seed)).steps) == steps
