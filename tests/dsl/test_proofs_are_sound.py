"""What is proven about random expressions holds for random legal values."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.check import type_method
from sparsec.dsl.evaluate import EvaluationError, evaluate
from sparsec.dsl.parser import parse
from sparsec.dsl.static import lower_bound, provably_leq, provably_multiple, upper_bound

HEADER = """
  param budget: tokens in 1.. = 64
  param window: tokens in 1..budget = 1
  param gap: tokens in 0..budget - 1 = 0
  param block: int in {4, 8, 32} = 8
"""
BINARY = ("+", "-", "*", "//", "%")


def expression(rnd: random.Random, depth: int) -> str:
    if depth == 0 or rnd.random() < 0.2:
        return rnd.choice(("budget", "window", "gap", "block", "len", "layer", str(rnd.randint(0, 9))))
    one, other = expression(rnd, depth - 1), expression(rnd, depth - 1)
    choice = rnd.random()
    if choice < 0.3:
        return f"{rnd.choice(('min', 'max'))}({one}, {other})"
    if choice < 0.35:
        return f"where(budget > 9, {one}, {other})"
    if choice < 0.45:
        return f"{rnd.choice(('floor', 'ceil', 'round'))}(({one}) * {rnd.choice(('0.5', '0.25', '1.5'))})"
    op = rnd.choice(BINARY)
    if op in ("//", "%"):
        other = rnd.choice(("block", "window", "3", f"max(1, {other})"))
    return f"({one}) {op} ({other})"


def values(rnd: random.Random) -> dict[str, int]:
    budget = rnd.choice((1, 2, 3, 7, 64, 1000))
    layers = rnd.choice((1, 2, 30))
    env = {"budget": budget, "window": rnd.randint(1, budget), "gap": rnd.randint(0, budget - 1)}
    return env | {"block": rnd.choice((4, 8, 32)), "len": rnd.choice((1, 5, 100, 3000)), "n_layers": layers, "layer": rnd.randrange(layers)}


def number(expr: t.Expr, env: dict[str, int]) -> Fraction | None:
    try:
        return Fraction(evaluate(expr, env))
    except EvaluationError:
        return None


@pytest.mark.parametrize("seed", range(6))
def test_every_proven_order_bound_and_divisor_holds(seed):
    rnd = random.Random(seed)
    proven = 0
    for _ in range(60):
        body = f"let a1 = {expression(rnd, 3)}\n let b1 = {expression(rnd, 2)}"
        source = Source("m", f"sparse 1\nmethod m {{ {HEADER} on finish_step {{ {body} }} }}")
        file = parse(source)
        ctx = type_method(file, source)
        if ctx.errors:
            continue
        a, b = (stmt.value for stmt in file.method.of(t.Hook)[0].body)
        leq, multiple = provably_leq(a, b, ctx), provably_multiple(a, b, ctx)
        low, high = lower_bound(a, ctx), upper_bound(a, ctx)
        proven += leq + multiple + (low is not None) + (high is not None)
        for _ in range(40):
            env = values(rnd)
            x, y = number(a, env), number(b, env)
            if x is None or y is None:
                continue
            assert not leq or x <= y, (body, env)
            assert not multiple or (x == 0 if y == 0 else x % y == 0), (body, env)
            assert (-math.inf if low is None else low) <= x <= (math.inf if high is None else high), (body, env, low, high)
    assert proven > 30
