"""decode.py of an artifact: the Triton kernels of a decode step, written for one method, with nothing in them that the method does not use."""

from __future__ import annotations

import ast
import re

import pytest

from samples import METHODS
from sparsec.pipeline import Compilation, load_manager

WITH_KERNELS = [name for name in METHODS if Compilation.load(name).decode is not None] + ["h2o positions=cache"]


def decode_of(case: str) -> str:
    """decode.py of a method whose params may follow its name."""
    method, *params = case.split()
    return Compilation.load(method, params=dict(param.split("=") for param in params)).decode


def kernel_names(text: str) -> list[str]:
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("method", WITH_KERNELS)
def test_the_text_parses_fits_120_columns_and_names_its_origin(method: str) -> None:
    text = decode_of(method)
    head = ast.get_docstring(ast.parse(text))
    assert f"from {method.split()[0]}.sparse (sha256 " in head and "Edit the spec, not this file" in head
    assert max(map(len, text.splitlines())) <= 120
    assert not re.search(r"\n{4}|[ \t]\n|\n\n\Z|\n +\(\n", text), "blank lines, trailing blanks or folds that nobody would write"
    assert ", ".join(kernel_names(text)) in " ".join(head.split()), "the head names every kernel in its order"


@pytest.mark.parametrize("method", WITH_KERNELS)
def test_every_argument_is_used(method: str) -> None:
    for function in ast.parse(decode_of(method)).body:
        if isinstance(function, ast.FunctionDef):
            used = {node.id for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
            assert {argument.arg for argument in function.args.args} <= used, function.name


@pytest.mark.parametrize("method", WITH_KERNELS)
def test_every_import_is_used(method: str) -> None:
    tree = ast.parse(decode_of(method))
    imported = {alias.asname or alias.name.split(".")[0] for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    assert imported <= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_what_the_method_lacks_is_not_in_its_kernels() -> None:
    dense = Compilation.load("dense").decode
    assert kernel_names(dense) == ["write_rows", "attend_rows", "merge_chunks"]
    assert "row_pos" not in dense and "logits_ptr" not in dense and "state_" not in dense and "first" not in dense


def test_kernels_cite_the_line_of_the_statement_that_they_run() -> None:
    compilation = Compilation.load("h2o")
    lines = compilation.source.text.splitlines()
    cited = re.search(r'"""Line (\d+): score\[t, h\] \+= the mean over g', compilation.decode)
    assert cited and "after_decode_attention" in lines[int(cited[1]) - 1]


def test_another_reduction_is_another_kernel() -> None:
    texts = {reduce: Compilation.load("h2o", params={"reduce": reduce}).decode for reduce in ("mean", "sum", "max")}
    assert "mass / G" in texts["mean"] and "mass / G" not in texts["sum"] and "tl.maximum(mass, share)" in texts["max"]


def test_the_torch_target_has_no_triton_file_and_its_steps_say_so() -> None:
    from sparsec_runtime.gpu.eligible import reasons_against_graph

    compilation = Compilation.load("dense", target="torch")
    assert compilation.decode is None and not (compilation.artifact.path / "decode.py").exists()
    assert reasons_against_graph(load_manager(compilation)) == ("the method was compiled for the torch target: compile it with --target triton",)
    assert reasons_against_graph(load_manager(Compilation.load("dense"))) == ()
