"""Artifacts: the same bytes on every run, published whole, verified on load, loadable without the compiler."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sparsec_runtime.artifact import ArtifactError, load_artifact

from sparsec.codegen import artifacts
from sparsec.commands.compile import run
from sparsec.dsl.source import load_source
from sparsec.failures import CommandError
from sparsec.pipeline import Compilation

FILES = {"decode.py", "facts.json", "graph.json", "kernels.py", "manager.py", "manifest.json", "spec.sparse"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARSEC_CACHE", str(tmp_path))
    return tmp_path / "artifacts"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_an_artifact_has_exactly_the_documented_files(cache: Path) -> None:
    assert set(contents(Compilation.load("h2o").artifact.path)) == FILES


def test_two_compilations_in_two_processes_give_the_same_bytes(tmp_path: Path) -> None:
    spec = tmp_path / "mine.sparse"
    spec.write_text(load_source("ada_snapkv").text)
    for name in ("one", "two"):
        env = {**os.environ, "PYTHONHASHSEED": str(len(name) + ord(name[0]))}
        command = [sys.executable, "-m", "sparsec.cli", "compile", str(spec), "--out", str(tmp_path / name)]
        subprocess.run(command, check=True, env=env, capture_output=True)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_second_compilation_finds_the_first_one(cache: Path) -> None:
    first, second = Compilation.load("h2o").artifact, Compilation.load("h2o").artifact
    assert (first.path, first.fresh, second.fresh) == (second.path, True, False)


def test_a_static_param_makes_another_artifact_and_a_request_param_does_not(cache: Path) -> None:
    plain = Compilation.load("h2o").artifact.key
    assert Compilation.load("h2o", {"heads": "joint"}).artifact.key != plain
    assert Compilation.load("h2o", {"budget": "77"}).artifact.key == plain


@pytest.mark.parametrize("damage", ["changed", "missing", "empty directory"])
def test_a_damaged_entry_is_rebuilt(cache: Path, damage: str) -> None:
    path = Compilation.load("h2o").artifact.path
    whole = contents(path)
    for name in whole if damage == "empty directory" else ["kernels.py"]:
        (path / name).write_text("broken") if damage == "changed" else (path / name).unlink()
    assert Compilation.load("h2o").artifact.fresh
    assert contents(path) == whole


def test_a_killed_compiler_leaves_no_entry_and_no_obstacle(cache: Path) -> None:
    expected = contents(Compilation.load("h2o").artifact.path)
    key = Compilation.load("h2o").artifact.key
    for path in cache.iterdir():
        subprocess.run(["rm", "-r", str(path)], check=True)
    child = multiprocessing.get_context("fork").Process(target=_compile_slowly)
    child.start()
    while not list(cache.glob(f".{key}.*/kernels.py")):
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert not (cache / key).exists(), "half an artifact was published"
    assert contents(Compilation.load("h2o").artifact.path) == expected
    assert not list(cache.glob(f".{key}.*")), "what the killed compiler left was not swept"


def _compile_slowly() -> None:
    """Stops before the rename, for as long as it lives."""
    artifacts.os.rename = lambda *_paths: time.sleep(60)
    Compilation.load("h2o").artifact


def test_compilers_at_the_same_time_agree_on_one_entry(cache: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        keys = pool.map(_key_of, ["snapkv"] * 8)
    assert len(set(keys)) == 1
    assert set(contents(cache / keys[0])) == FILES
    assert not [path for path in cache.iterdir() if path.name.startswith(".")], "temporary directories were left"


def _key_of(method: str) -> str:
    return Compilation.load(method).artifact.key


def test_a_changed_file_is_refused_on_load(tmp_path: Path) -> None:
    path = Compilation.load("h2o").write(str(tmp_path / "mine")).path
    (path / "kernels.py").write_text((path / "kernels.py").read_text() + "\n# edited\n")
    with pytest.raises(ArtifactError, match="kernels.py was changed after it was compiled"):
        load_artifact(path)


def test_another_abi_is_refused_on_load(tmp_path: Path) -> None:
    path = Compilation.load("h2o").write(str(tmp_path / "mine")).path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "abi": 99}))
    with pytest.raises(ArtifactError, match="compiled for ABI 99"):
        load_artifact(path)


def test_a_directory_without_a_manifest_is_refused_on_load(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="compile the method again"):
        load_artifact(tmp_path)


def test_out_does_not_overwrite_what_is_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CommandError, match="is no artifact"):
        Compilation.load("h2o").write(str(tmp_path))


def test_two_artifacts_live_side_by_side_and_know_their_files(cache: Path) -> None:
    each, joint = (load_artifact(Compilation.load("h2o", {"heads": heads}).artifact.path) for heads in ("each", "joint"))
    assert each is not joint and each.FACTS["method"] == joint.FACTS["method"] == "h2o"
    assert Path(sys.modules[each.__module__].__file__).parent == Compilation.load("h2o", {"heads": "each"}).artifact.path


def test_loading_reads_and_writes_no_bytecode_beside_the_verified_files(cache: Path) -> None:
    path = Compilation.load("tova").artifact.path
    load_artifact(path)
    assert {each.name for each in path.iterdir()} == FILES


def test_an_artifact_loads_where_the_compiler_cannot_be_imported(cache: Path) -> None:
    path = Compilation.load("quest").artifact.path
    script = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("lark", "sparsec"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from sparsec_runtime.artifact import load_artifact
assert load_artifact({str(path)!r}).LAYOUT.page_size == 16
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_emit_prints_every_stage_and_writes_nothing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    for stage in ("syntax", "graph", "facts", "plan", "kernels", "manager"):
        args = argparse.Namespace(method="h2o", param=["budget=9"], target="torch", emit=stage, out=None, model=None)
        assert run(args) == 0
        assert "score" in capsys.readouterr().out
    assert not cache.exists()
