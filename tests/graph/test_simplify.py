"""Shorter formulas with the same value."""

from __future__ import annotations

import itertools

import pytest

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.parser import parse
from sparsec.graph.simplify import Simplifier
from sparsec.graph.text import text

SHORTER = {
    "sinks + (budget - sinks)": "budget",
    "max(1, interval)": "interval",
    "max(1, sinks)": "max(1, sinks)",
    "max(budget + 1, budget + interval)": "budget + interval",
    "min(total, total // budget * budget)": "total // budget * budget",
    "total - total // budget * budget": "total % budget",
    "total - max(0, total - budget)": "min(total, budget)",
    "max(0, max(0, total - sinks) - budget)": "max(0, total - sinks - budget)",
    "total - max(0, max(0, total - sinks) - budget)": "min(total, sinks + budget)",
    "budget - sinks": "budget - sinks",
    "sinks + budget + 2 - 2": "sinks + budget",
}


def params(expression: str) -> tuple[dict[str, t.Param], t.Expr]:
    source = f"""sparse 1
method m {{ param budget: tokens in 1.. = 4  param sinks: tokens in 0.. = 2  param interval: tokens in 1.. = 1
  on finish_step {{ let it = {expression} }} }}"""
    method = parse(Source("test.sparse", source)).method
    return {param.name.text: param for param in method.of(t.Param)}, method.of(t.Hook)[0].body[0].value


@pytest.mark.parametrize("expression", SHORTER)
def test_formulas_get_shorter_and_keep_their_value(expression):
    declared, tree = params(expression)
    short = text(Simplifier(declared)(tree))
    assert short == SHORTER[expression]
    for total, budget, sinks, interval in itertools.product((1, 5, 9), (1, 4), (0, 3), (1, 2)):
        scope = {"total": total, "budget": budget, "sinks": sinks, "interval": interval}
        assert eval(short, {}, scope) == eval(expression, {}, scope), scope


def test_expressions_are_written_with_the_parentheses_that_they_need():
    for expression in ("a - (b - c)", "(a or b) and c", "not (a and b)", "-(a + b)", "a - b - c", "(a | b) & c", "(a implies b) implies c"):
        assert text(params(expression)[1]) == expression
