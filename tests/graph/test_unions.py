"""Sizes of sets: what positions decide is exact, what scores decide is a bound and makes tables of heads or layers."""

from __future__ import annotations

import random

import pytest

from sparsec.graph.counts import count_rules
from sparsec.graph.host import HELPERS, Python, compiled as code
from sparsec.graph.program import Program
from sparsec.graph.text import text

SCORED = "{ param n: tokens in 1.. = 5 on end_of_prompt { let votes[t, h] = sum[c](V[t, h, c]) evict keep KEEP } }"


def members(expr: str, length: int) -> set[int]:
    """The rows of a positional set, by plain Python."""
    rows = list(range(length))
    builders = {
        "all": set(rows), "none": set(),
        "sink": lambda n: set(rows[:n]), "oldest": lambda n: set(rows[:n]), "recent": lambda n: set(rows[max(0, length - n) :]),
        "every": lambda n: set(rows[::n]),
    }  # fmt: skip
    return eval(expr, {"__builtins__": {}, **builders})


def drawn(draw: random.Random, depth: int) -> str:
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(("all", *(f"{name}({draw.randrange(1, 12)})" for name in ("sink", "oldest", "recent", "recent"))))
    op = draw.choice(("|", "|", "&", "-"))
    return f"({drawn(draw, depth - 1)} {op} {drawn(draw, depth - 1)})"


@pytest.mark.parametrize("seed", range(60))
def test_sets_of_positions_are_counted_exactly_whatever_overlaps(compiled, seed):
    draw = random.Random(seed)
    expr = drawn(draw, 3 if seed % 2 else 1)
    expr = f"({expr} | every({draw.randrange(1, 6)}))" if seed % 3 == 0 else expr
    compilation = compiled(f"{{ on end_of_prompt {{ evict keep recent(1) | {expr} }} }}")
    (rule,) = count_rules(compilation.special)
    python = Python(Program(compilation.special))
    for length in (1, 2, 5, 9, 13, 24, 40):
        counted = eval(code(python(rule.rows)), {**HELPERS, "length": length})
        held = len(members(f"recent(1) | {expr}", length))
        assert counted == held if rule.exact else counted >= held, f"{expr} of {length} rows: {text(rule.rows)}"
    assert rule.varies == "" and compilation.facts.table.value == "shared"
    assert rule.exact or seed % 2, f"{expr} is simple enough to be exact: {text(rule.rows)}"


@pytest.mark.parametrize(
    ("keep", "rows"),
    [
        ("sink(4) | recent(n)", "min(len, 4 + n)"),
        ("sink(4) | sink(n) | recent(2)", "min(len, max(4, n) + 2)"),
        ("sink(4) then top[t](votes[t, h], n)", "min(len, 4 + n)"),
        ("sink(4) | top[t in all - sink(4)](votes[t, h], n)", "min(len, 4 + min(max(0, len - 4), n))"),
        ("sink(4) then top[t](votes[t, h]) upto n + 4", "min(len, n + 4)"),
        ("sink(2) then top[t in recent(9)](votes[t, h], n)", None),
    ],
)
def test_disjoint_parts_add_up(compiled, keep, rows):
    (rule,) = count_rules(compiled(SCORED.replace("KEEP", keep)).special)
    assert (rule.exact, rule.varies) == (True, "")
    assert rows is None or text(rule.rows) == rows


@pytest.mark.parametrize(
    ("keep", "scope"),
    [
        ("sink(4) | top[t](votes[t, h], n)", "head"),
        ("sink(4) | top[t](sum[h](votes[t, h]), n)", "layer"),
        ("top[t](votes[t, h], n) | bottom[t](votes[t, h], n)", "head"),
        ("recent(4) | (top[t](votes[t, h], n) - sink(2))", "head"),
        ("recent(4) | (top[t](votes[t, h], n) & recent(9))", "head"),
        ("recent(1) then top[t in top[t](votes[t, h], 9)](votes[t, h], n)", "head"),
        ("recent(9) - top[t](sum[h](votes[t, h]), n) | recent(1)", "layer"),
    ],
)
def test_where_scores_decide_how_many_the_table_is_of_heads_or_layers(compiled, keep, scope):
    compilation = compiled(SCORED.replace("KEEP", keep))
    (rule,) = count_rules(compilation.special)
    assert not rule.exact and rule.varies == scope
    assert compilation.facts.table.value == scope


def test_a_guard_that_only_the_bound_passes_leaves_the_rows_that_it_lets_be(compiled):
    body = SCORED.replace("on end_of_prompt", "on finish_step when len > 30").replace("KEEP", "sink(4) | top[t](votes[t, h], n)")
    (rule,) = count_rules(compiled(body).special)
    assert rule.certain and text(rule.rows) == "min(len, max(4 + n, 30))"


def test_a_guard_that_counts_otherwise_makes_the_rule_uncertain_once_len_is_a_bound(compiled):
    body = SCORED.replace("on end_of_prompt", "on finish_step when len % 8 == 0").replace("KEEP", "sink(4) | top[t](votes[t, h], n)")
    (rule,) = count_rules(compiled(body).special)
    assert not rule.certain


@pytest.mark.parametrize(
    ("keep", "rows"),
    [
        ("recent(2) | top[p](max[t in p, h, c](K[t, h, c]), 3)", "min(len, 2 + tokens(3))"),
        ("recent(2) then top[p](max[t in p, c](K[t, h, c])) upto 4", "min(len, tokens(4))"),
    ],
)
def test_whole_pages_are_bounded_since_the_newest_may_be_partial(compiled, keep, rows):
    body = f"{{ param page_size: tokens in {{4, 8}} = 4 on end_of_prompt {{ evict keep {keep} }} }}"
    compilation = compiled(body)
    (rule,) = count_rules(compilation.special)
    assert (text(rule.rows), rule.exact) == (rows, False)
    assert compilation.facts.table.value == ("layer" if "[t in p, h, c]" in keep else "head")
    assert "page_size" not in compilation.manager.split("def rows_after")[1]
