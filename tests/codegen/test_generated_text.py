"""Generated files read as if written by hand, and say where they come from."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from samples import METHODS
from sparsec.pipeline import Compilation

HERE = Path(__file__).parent
EXPECTED = [("relative_sets", "kernels"), ("shares_of_heads", "kernels"), ("shares_of_heads", "manager"), ("pair_of_zones", "manager")]


@pytest.mark.parametrize(("spec", "stage"), EXPECTED)
def test_the_text_is_the_pinned_one(spec: str, stage: str) -> None:
    """To accept a change: sparsec compile tests/codegen/specs/SPEC.sparse --emit STAGE > tests/codegen/expected/SPEC.STAGE.txt"""
    compilation = Compilation.load(str(HERE / "specs" / f"{spec}.sparse"))
    expected = (HERE / "expected" / f"{spec}.{stage}.txt").read_text()
    assert getattr(compilation, stage) == expected


@pytest.mark.parametrize("method", METHODS)
def test_every_file_parses_fits_120_columns_and_names_its_origin(method: str) -> None:
    compilation = Compilation.load(method)
    for text in (compilation.kernels, compilation.manager):
        head = ast.get_docstring(ast.parse(text))
        assert f"from {method}.sparse (sha256 " in head and "Edit the spec, not this file" in head
        assert max(map(len, text.splitlines())) <= 120
        assert not re.search(r"\n{4}|[ \t]\n|\n\n$", text), "blank lines or trailing blanks that nobody would write"


@pytest.mark.parametrize("method", METHODS)
def test_kernels_import_the_abi_and_torch_alone_and_loop_over_blocks_alone(method: str) -> None:
    tree = ast.parse(Compilation.load(method).kernels)
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} | {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert names <= {"__future__", "torch", "sparsec_runtime.abi"}
    loops = [ast.unparse(node.iter) for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    assert set(loops) <= {"view.blocks()"}


def test_each_statement_cites_the_spec_line_that_it_comes_from() -> None:
    compilation = Compilation.load(str(HERE / "specs" / "shares_of_heads.sparse"))
    lines = compilation.source.text.splitlines()
    cited = re.findall(r"# line (\d+): (.*)", compilation.kernels)
    assert len(cited) >= 6
    for number, text in cited:
        assert lines[int(number) - 1].strip().startswith(text.removesuffix("..."))


def test_a_plan_says_what_is_computed_and_nothing_about_how() -> None:
    plan = Compilation.load(str(HERE / "specs" / "nucleus_of_rows.sparse")).plan
    steps = {binding.function: [str(step) for step in binding.steps] for binding in plan.bindings}
    assert steps["update_mass"] == [
        "sum_of_queries = sum over blocks of reduce(sum, i, reduce(mean, g, of_queries(probs, block)[i,h,g,t])[i,h,t])[h,t]",
        "mass[h,t] := map(add, state(mass)[h,t], local(sum_of_queries)[h,t])[h,t]",
    ]
    assert steps["evict_rows"][-1].startswith("evict keep keep(protected, t, top, counted, bottom, None, upto, ")


def test_recording_a_let_adds_one_line_and_changes_nothing_else() -> None:
    spec = str(HERE / "specs" / "shares_of_heads.sparse")
    plain, recording = (Compilation.load(spec, record=record).kernels.splitlines() for record in (frozenset(), frozenset({"total"})))
    added = [line.strip() for line in recording if line not in plain]
    assert added == ['view.record("total", total, ("h",))']


@pytest.mark.parametrize(("over_g", "method"), [("mean", "mean"), ("sum", "sum"), ("max", "amax")])
def test_a_sum_over_a_window_of_probs_is_one_call(over_g: str, method: str) -> None:
    kernels = Compilation.load("snapkv", {"reduce": over_g}).kernels
    assert f'newest.mass("sum").{method}(2)' in kernels and "newest.probs" not in kernels
