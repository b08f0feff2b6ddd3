"""Who may import whom, and that no method is known to Python."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMPILER = sorted((ROOT / "sparsec").rglob("*.py"))
RUNTIME = sorted((ROOT / "runtime" / "sparsec_runtime").rglob("*.py"))
LAYERS = ("dsl", "graph", "codegen")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_the_runtime_never_imports_the_compiler_or_its_libraries():
    for path in RUNTIME:
        wrong = {name for name in imports_of(path) if name.split(".")[0] in ("sparsec", "lark", "networkx", "jinja2")}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("layer", LAYERS)
def test_dependencies_of_the_compiler_point_one_way(layer):
    above = LAYERS[LAYERS.index(layer) + 1 :]
    for path in sorted((ROOT / "sparsec" / layer).rglob("*.py")):
        wrong = {name for name in imports_of(path) for later in above if name.startswith(f"sparsec.{later}")}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_no_method_is_named_in_python():
    names = "|".join(sorted(path.stem for path in (ROOT / "methods").glob("*.sparse") if path.stem != "dense"))
    pattern = re.compile(rf"\b({names})\b", re.IGNORECASE)
    for path in COMPILER + RUNTIME:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            assert not pattern.search(line), f"{path.relative_to(ROOT)}:{number} names a method: {line.strip()}"


def test_checking_a_spec_imports_no_torch():
    script = (
        "import sys; from sparsec.cli import main; code = main(['check', *sys.argv[1:]]); "
        "assert code == 0, code; assert 'torch' not in sys.modules, 'torch was imported'"
    )
    methods = [str(path) for path in sorted((ROOT / "methods").glob("*.sparse"))]
    subprocess.run([sys.executable, "-c", script, *methods], check=True)


def test_an_artifact_runs_where_lark_cannot_be_imported(tmp_path):
    from sparsec.model_facts import from_shape
    from sparsec.pipeline import Compilation
    from sparsec_runtime.models.shape import resolve_shape

    model = from_shape(resolve_shape("tiny-llama"))
    Compilation.load("snapkv", params={"budget": 16, "window": 4}, model=model).write(str(tmp_path / "artifact"))
    script = f"""
import sys
sys.modules["lark"] = None
from sparsec_runtime.artifact import load_artifact
from sparsec_runtime.engine import Engine
from sparsec_runtime.models.loading import load_model
from sparsec_runtime.sampler import SamplingParams
engine = Engine(load_artifact({str(tmp_path / "artifact")!r}), load_model("tiny-llama", load_format="dummy"))
outputs = list(engine.generate([list(range(3, 60))], SamplingParams(max_tokens=4, ignore_eos=True), {{"budget": 16, "window": 4}}))
assert outputs[-1].usage.tokens_evicted == 41, outputs[-1]
assert not any(name == "sparsec" or name.startswith("sparsec.") for name in sys.modules), "the compiler was imported"
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_spec_outside_the_repository_runs_unmodified(tmp_path):
    from sparsec.cli import main

    spec = tmp_path / "mine.sparse"
    assert main(["new", "mine", "--out", str(spec)]) == 0
    assert main(["check", str(spec)]) == 0
    arguments = ["run", str(spec), "--model", "tiny-llama", "--load-format", "dummy", "--prompt", "hello " * 20, "--max-tokens", "4"]
    assert main([*arguments, "--param", "budget=16"]) == 0
