"""Static params become values, and what they decide disappears."""

from __future__ import annotations

import pytest

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.parser import parse
from sparsec.dsl.source import load_source
from sparsec.dsl.specialise import static_params
from sparsec.graph.text import text
from sparsec.pipeline import Compilation


def method_of(body: str) -> t.Method:
    return parse(Source("mine.sparse", f"sparse 1\nmethod mine {{\n{body}\n}}\n")).method


def special(name: str, **params: object) -> t.Method:
    return Compilation.load(name, params).special.method


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("snapkv", {"kernel", "pooling", "reduce", "heads", "evict_in_prefill"}),
        ("quest", {"page_size", "dense", "heads", "open"}),
        ("kivi", {"k_bits", "v_bits", "block", "flush"}),
        ("dense", set()),
    ],
)
def test_the_params_that_decide_what_is_compiled_are_static(name: str, expected: set[str]) -> None:
    assert expected <= static_params(parse(load_source(name)).method)
    assert not static_params(parse(load_source(name)).method) & {"budget", "window", "residual", "min_pages"}


def test_a_default_of_a_static_param_makes_its_params_static() -> None:
    body = "param base: int in 1.. = 4\nparam k_bits: bits in {2, 4} = base\nparam other: int in 1.. = base"
    assert static_params(method_of(body)) == {"base", "k_bits"}


def test_a_choice_leaves_one_branch_of_where() -> None:
    let = next(node for node in t.walk(special("snapkv", reduce="max")) if isinstance(node, t.Let) and node.target.name.text == "votes")
    assert text(let.value) == "max[g](sum[i in last(window)](probs[i, h, g, t]))"


def test_a_choice_leaves_one_branch_of_when() -> None:
    moves = [text(node.rows) for node in t.walk(special("kivi", flush="blocks")) if isinstance(node, t.Move)]
    assert len(moves) == 1
    assert not [node for node in t.walk(special("kivi")) if isinstance(node, t.Branch)]


def test_true_parts_of_a_guard_go_and_a_hook_that_never_fires_goes_too() -> None:
    source = Source("mine.sparse", """sparse 1
method mine {
  param budget: tokens in 1.. = 8
  param late: bool = false
  param never: bool = false
  on end_of_prompt when len > budget and (prompt_done or late) { evict keep recent(budget) }
  on finish_step when never { evict keep recent(budget) }
}
""")
    hooks = Compilation(source).special.method.of(t.Hook)
    assert [text(hook.when) for hook in hooks] == ["len > budget and prompt_done"]


def test_a_rule_that_runs_only_as_the_prompt_ends_is_one_of_end_of_prompt_and_flags_are_constants_in_it() -> None:
    source = Source("mine.sparse", """sparse 1
method mine {
  param budget: tokens in 1.. = 8
  param early: bool = false
  on end_of_prompt, finish_step when prefilling and len > where(prompt_done, budget, 2 * budget) and (prompt_done or early) {
    evict keep recent(where(prompt_done, budget, 2 * budget))
  }
}
""")
    (late,), (early,) = (Compilation(source, {"early": value}).special.method.of(t.Hook) for value in (False, True))
    assert ([name.text for name in late.names], text(late.when)) == (["end_of_prompt"], "len > budget")
    assert text(late.body[0].keep.steps[0]) == "recent(budget)"
    assert [name.text for name in early.names] == ["end_of_prompt", "finish_step"]
    assert text(early.when) == "prefilling and len > where(prompt_done, budget, 2 * budget)"


def test_spans_survive_so_that_generated_code_cites_the_users_lines() -> None:
    original, changed = (next(n for n in t.walk(m) if isinstance(n, t.Evict)) for m in (parse(load_source("snapkv")).method, special("snapkv")))
    assert changed.span == original.span


def test_static_params_are_gone_and_request_params_stay_with_their_ranges() -> None:
    params = {param.name.text: param for param in special("kivi", block=16).of(t.Param)}
    assert set(params) == {"residual"}
    assert text(params["residual"].bound.low) == "16"


def test_a_param_behind_the_let_of_a_width_is_compiled_in() -> None:
    body = (
        "param radius: int in 1.. = 3\nparam budget: tokens in 8.. = 16\non end_of_prompt when len > budget {\n"
        "let w = 2 * radius + 1\nlet v = w\nlet score[t, h] = maxpool[t in all - recent(4)](sum[c](K[t, h, c]), width = v)\n"
        "evict keep recent(4) then top[t](score[t, h]) upto budget\n}"
    )
    assert static_params(method_of(body)) == {"radius"}
    compilation = Compilation(Source("mine.sparse", f"sparse 1\nmethod mine {{\n{body}\n}}\n"), {"radius": 2})
    assert "ops.maxpool(view.K.float().sum(3), score_rows, 5)" in compilation.kernels


def test_a_scheduled_page_size_is_the_page_size_and_no_part_of_the_meaning() -> None:
    body = "param rows: int in {16, 32} = 16\nparam budget: tokens in 1.. = 16\non finish_step when len > budget { evict keep recent(budget) }"
    text = f"sparse 1\nmethod mine {{\n{body}\nSCHEDULE\n}}\n"
    plain = Compilation(Source("mine.sparse", text.replace("SCHEDULE", "")))
    paged = Compilation(Source("mine.sparse", text.replace("SCHEDULE", "schedule { page_size = 2 * rows }")), {"rows": 32})
    assert static_params(paged.syntax.method) == {"rows"}
    assert (plain.page_size, paged.page_size) == (16, 64)
    assert "page_size=64," in paged.manager and "page_size" not in plain.manager
    assert paged.facts.rows == plain.facts.rows
