"""Long lines of generated Python: they fit, and mean what they meant."""

from __future__ import annotations

import ast
import random
import re

import pytest

from samples import tensors
from sparsec.codegen.folding import fold
from sparsec.diagnostics import Source
from sparsec.pipeline import Compilation
from sparsec.replay import replay

LEAVES = ('alpha', 'params["budget"]', "view.K[:, None, :, :]", "3", 'model["kv_heads"]')
SHAPES = (
    "({} + {} - {})", "max({}, {})", "({} if {} else {})", 'ops.keep({}, [ops.R("top, (", {}, axes=({}, 2)), {}], {})', "({},)",
    "[{} for l in range({})]", "({} and {} or not {} == {})", "({} | ~{}).any((1, 2))", "-(-{} // {})",
)  # fmt: skip
STATEMENTS = ("x = {}", "if {}:  # line 3\n    pass", "return {}", "view.evict({})", "if not {}:\n    pass", "f(q=lambda params, model: {})")


def expression(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(LEAVES)
    return re.sub(r"\{\}", lambda _: expression(draw, depth - 1), draw.choice(SHAPES))


def test_a_folded_statement_fits_and_means_the_same():
    draw = random.Random(0)
    for _ in range(300):
        statement = draw.choice(STATEMENTS).replace("{}", expression(draw, draw.randrange(5)))
        lines = [piece for line in statement.split("\n") for piece in fold(f"    {line}", 100)]
        assert max(map(len, lines)) <= 100
        before = "def f():\n" + "\n".join(f"    {line}" for line in statement.split("\n"))
        assert ast.dump(ast.parse("def f():\n" + "\n".join(lines))) == ast.dump(ast.parse(before))


def test_it_breaks_before_the_loosest_operator_and_after_commas():
    assert fold("value = first_number * second_number + third_number * fourth(a, b)", 40) == [
        "value = (", "    first_number * second_number", "    + third_number * fourth(a, b)", ")",
    ]  # fmt: skip
    assert fold("keep = ops.keep(first_rows, second_rows, third_rows)", 30) == [
        "keep = ops.keep(", "    first_rows,", "    second_rows,", "    third_rows,", ")",
    ]  # fmt: skip


LONG = " + ".join(f"weight_number_{n} * score[t, h]" for n in range(40))
PARAMS = "\n".join(f"  param weight_number_{n}: ratio in 0..1 = 0.{n + 1:02}" for n in range(40))
ROWS = " + ".join(f"min(extra_rows_of_kind_{n}, len // {n + 2})" for n in range(20))
COUNTS = "\n".join(f"  param extra_rows_of_kind_{n}: tokens in 1..8 = 1" for n in range(20))
GUARD = " or ".join(f"len > {n + 20} * extra_rows_of_kind_{n % 20}" for n in range(30))
LAYERS = " or ".join(f"layer == {n} * n_layers // 97" for n in range(0, 97, 3))
SPEC = f"""sparse 1
method long_expressions {{
{PARAMS}
{COUNTS}
  param total: tokens in 1.. = {" + ".join(f"extra_rows_of_kind_{n}" for n in range(20))}
  state score[t, h]: f32 = 0
  on after_prefill_attention, after_decode_attention for {LAYERS} or layer >= 0 {{ score[t, h] += sum[i, g](probs[i, h, g, t]) }}
  on end_of_prompt when {GUARD} {{ evict keep recent(4) then top[t]({LONG}) upto max(5, {ROWS}) }}
}}
"""


def test_very_long_expressions_of_a_spec_fit_and_run(tmp_path):
    compilation = Compilation(Source("long.sparse", SPEC))
    for text in (compilation.kernels, compilation.manager):
        ast.parse(text)
        assert max(map(len, text.splitlines())) <= 120
    path = tmp_path / "long.sparse"
    path.write_text(SPEC)
    call = dict(prompt_len=60, **tensors(62, seed=1))
    mine, other = (replay(str(path), target=target, **call) for target in ("torch", "reference"))
    assert all((a == b).all() for x, y in zip(mine.kept, other.kept) for p, q in zip(x, y) for a, b in zip(p, q))


@pytest.mark.parametrize("names", [("votes", "smooth", "rows_here"), ("sloped", "exact_rows", "steps_down")])
def test_recording_many_lets_of_a_long_method_fits(names):
    compilation = Compilation.load("pyramidkv", {"rounding": "exact"}, record=frozenset(names))
    assert max(map(len, (compilation.kernels + compilation.manager).splitlines())) <= 120


def test_a_method_with_long_names_and_many_states_fits():
    name = "n" * 79
    states = "\n".join(f"  state {name}{n}[t, h]: f32 = 0" for n in range(4))
    updates = " ".join(f"{name}{n}[t, h] += max[i, g](probs[i, h, g, t])" for n in range(4))
    total = " + ".join(f"{name}{n}[t, h]" for n in range(4))
    text = f"""sparse 1\nmethod m {{\n{states}
  on after_prefill_attention, after_decode_attention {{ {updates} }}
  on end_of_prompt, finish_step {{ evict keep recent(1) then top[t]({total}) upto 9 }}\n}}\n"""
    compilation = Compilation(Source("m.sparse", text))
    ast.parse(compilation.manager)
    assert max(map(len, compilation.kernels.splitlines())) <= 120
