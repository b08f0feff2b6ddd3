"""S3xx: kinds, units, ranges; and the proofs over scalar expressions that other checks rest on."""

import pytest
from found import codes

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.check import type_method
from sparsec.dsl.context import Context
from sparsec.dsl.parser import parse
from sparsec.dsl.static import lower_bound, provably_leq, provably_multiple, upper_bound

PARAMS = """
  param budget: tokens in 1.. = 64
  param window: tokens in 1..budget = 1
  param few: pages in 1..8 = 3
  param share: ratio in 0..1 = 0.5
  param block: int in {4, 8, 32} = 8
  param bits: bits in {2, 4} = 2
"""


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("budget + few", "S302"),
        ("budget - share", "S302"),
        ("max(few, budget)", "S302"),
        ("where(prefilling, few, budget)", "S302"),
        ("budget % bits", "S302"),
        ("budget // 0", "S307"),
        ("budget + prefilling", "S301"),
        ("budget + all", "S301"),
        ("pages(few)", "S304"),
        ("tokens(budget)", "S304"),
        ("budget / 2", "S303"),
        ("share * budget", "S303"),
        ("few", "S304"),
    ],
)
def test_a_mistaken_count_of_tokens_is_reported(expression, code):
    found = codes(f"{PARAMS} param page_size: tokens in {{16}} = 16\n on finish_step when len > budget {{ evict keep recent({expression}) }}")
    assert code in found


@pytest.mark.parametrize(
    "expression",
    ["budget - 1", "budget // block * block", "floor(share * budget)", "tokens(few)", "round((1 - share) * budget + share)", "max(1, budget // 2)"],
)
def test_a_sound_count_of_tokens_passes(expression):
    page = "param page_size: tokens in {16} = 16\n" if "few" in expression else ""
    found = codes(f"{PARAMS}{page} on finish_step when len > budget {{ evict keep recent({expression}) }}")
    assert [code for code in found if code.startswith("S3")] == (["S302"] if "+ share" in expression else [])


@pytest.mark.parametrize(
    ("param", "code"),
    [
        ("a: tokens in 1..budget = budget // 2", "S305"),
        ("a: tokens in 1..budget = budget + 1", "S305"),
        ("a: bits in {2, 4} = 3", "S305"),
        ("a: ratio in 0..1 = 1.5", "S305"),
        ("a: tokens in 8..budget = 8", "S306"),
        ("a: tokens in 1.. = share", "S302"),
        ("a: tokens in 1.. = budget / 2", "S303"),
        ("a: bool = 3", "S301"),
        ("a: layer_set = 3", "S301"),
    ],
)
def test_a_default_that_cannot_be_is_reported(param, code):
    assert code in codes(f"{PARAMS} param {param}")


@pytest.mark.parametrize(
    "param",
    [
        "a: tokens in 1..budget = max(1, budget // 2)",
        "a: tokens in 0..budget - 1 = min(4, budget - 1)",
        "a: tokens in 1..budget = min(32, budget)",
        "a: tokens in block.. = max(block, 128)",
        "a: tokens in 1..budget = window",
        "a: layer_set = {0, n_layers // 2}",
        "a: int in 0..n_layers - 1 = n_layers // 2",
    ],
)
def test_a_default_that_always_fits_passes(param):
    assert not {"S302", "S303", "S305", "S306"} & set(codes(f"{PARAMS} param {param}"))


# ---- proofs --------------------------------------------------------------------------------------


def proof(*expressions: str, when: str = "true") -> tuple[Context, list[t.Expr], t.Expr]:
    lets = "\n".join(f"let e{index} = {text}" for index, text in enumerate(expressions))
    zones = "zone tail\n zone packed"
    source = Source("m", f"sparse 1\nmethod m {{ {PARAMS} {zones} on finish_step when {when} {{ let twice = 2 * window\n {lets} }} }}")
    file = parse(source)
    ctx = type_method(file, source)
    assert ctx.errors == ()
    hook = file.method.of(t.Hook)[0]
    return ctx, [stmt.value for stmt in hook.body[1:]], hook.when


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("window", "budget"),
        ("1", "min(32, budget)"),
        ("max(1, budget // 2)", "budget"),
        ("window", "window + max(1, len - 5)"),
        ("twice", "budget + budget"),
        ("budget // block * block", "budget"),
        ("budget", "budget // block * block + block"),
        ("rows(tail)", "len"),
        ("where(prefilling, 1, window)", "budget"),
        ("floor(share * budget)", "budget"),
        ("layer", "n_layers - 1"),
        ("budget * 2", "budget * kv_heads * 2"),
    ],
)
def test_an_order_that_always_holds_is_proven(a, b):
    ctx, (left, right), _ = proof(a, b)
    assert provably_leq(left, right, ctx)


@pytest.mark.parametrize(
    ("a", "b"), [("budget", "window"), ("2", "budget"), ("twice", "budget"), ("len", "budget"), ("budget - 1", "budget // 2"), ("1", "budget // 2")]
)
def test_an_order_that_can_fail_is_not_proven(a, b):
    ctx, (left, right), _ = proof(a, b)
    assert not provably_leq(left, right, ctx)


def test_a_guard_can_be_used_in_a_proof():
    ctx, (left, right), when = proof("budget + 4", "len", when="len > budget + 3")
    assert not provably_leq(left, right, ctx)
    assert provably_leq(left, right, ctx, (when,))


def test_bounds_are_the_tightest_constants_that_follow():
    ctx, (few, both, none), _ = proof("few * 2 + 1", "min(few, 5) + block", "budget")
    assert (lower_bound(few, ctx), upper_bound(few, ctx)) == (3, 17)
    assert (lower_bound(both, ctx), upper_bound(both, ctx)) == (5, 37)
    assert (lower_bound(none, ctx), upper_bound(none, ctx)) == (1, None)


@pytest.mark.parametrize(
    ("a", "b", "holds"),
    [
        ("len // block * block", "block", True),
        ("max(0, rows(tail) - 9) // block * block", "block", True),
        ("rows(tail, K) // (budget // block * block) * (budget // block * block)", "block", True),
        ("len - len % block", "block", True),
        ("64 * window", "32", True),
        ("block * 8", "32", True),
        ("block", "8", False),
        ("len", "block", False),
        ("len // block * block + 1", "block", False),
    ],
)
def test_divisibility_is_proven_from_the_form_of_the_expression(a, b, holds):
    ctx, (left, right), _ = proof(a, b)
    assert provably_multiple(left, right, ctx) is holds


def test_a_proof_ends_soon_on_a_hostile_expression():
    nested = "budget"
    for _ in range(12):
        nested = f"min(max({nested}, len), {nested} // 3)" if len(nested) < 2000 else nested
    ctx, (left, right), _ = proof(nested, "1")
    assert not provably_leq(left, right, ctx)
