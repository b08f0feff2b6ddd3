"""Artifacts on disk: content-addressed directories of real files, published whole or not at all.

The key is a hash over the rendered text and everything that may change what it means: ABI, torch and triton versions, target, arch.
A directory appears by one rename under a lock, so a killed compiler leaves a stray temporary directory and never half an artifact.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from filelock import FileLock

from sparsec.dsl import tree as t
from sparsec.dsl.specialise import StaticValue
from sparsec.failures import CommandError
from sparsec.graph.text import text as spec_text

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Artifact:
    """`key`: the content hash that names the entry in the cache."""

    path: Path
    key: str
    fresh: bool  # written by this call


def compiler_version() -> str:
    return _version_of("sparsec") or "0 (not installed)"


def manifest(method: str, target: str, static: Mapping[str, StaticValue]) -> dict[str, object]:
    """Everything beside the files' text that decides whether an artifact may be used."""
    from sparsec_runtime.abi import ABI_VERSION

    return {
        "format": FORMAT, "abi": ABI_VERSION, "sparsec": compiler_version(), "torch": _version_of("torch"),
        "triton": _version_of("triton"), "target": target, "arch": platform.machine(), "method": method,
        "static": {name: spec_text(value) if isinstance(value, t.Expr) else value for name, value in sorted(static.items())},
    }  # fmt: skip


def publish(files: Mapping[str, str], about: Mapping[str, object]) -> Artifact:
    """The artifact of these files in the cache: found and verified, or written. An intact entry needs no lock and no write access."""
    contents = _complete(files, about)
    key = _key(contents)
    root = cache_root()
    target = root / key
    try:
        if _intact(target, contents):
            return Artifact(target, key, fresh=False)
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{key}.lock"):
            if _intact(target, contents):
                return Artifact(target, key, fresh=False)
            for stray in root.glob(f".{key}.*"):  # of compilers that were killed: only the lock's holder writes here
                shutil.rmtree(stray)
            _replace(target, contents)
    except OSError as error:
        raise CommandError(f"cannot write the artifact cache {root}: {error.strerror or error}; set SPARSEC_CACHE") from error
    return Artifact(target, key, fresh=True)


def write(directory: str | Path, files: Mapping[str, str], about: Mapping[str, object]) -> Artifact:
    """The artifact in a directory of the user's: refuses to overwrite what is not an artifact."""
    contents = _complete(files, about)
    target = Path(directory).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())) and not (target / MANIFEST).is_file():
        raise CommandError(f"{directory} exists and is no artifact: give an empty or a new directory", exit_code=2)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, contents)
    except OSError as error:
        raise CommandError(f"cannot write {directory}: {error.strerror or error}") from error
    return Artifact(target, _key(contents), fresh=True)


def cache_root() -> Path:
    base = os.environ.get("SPARSEC_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "sparsec") / "artifacts"


def _complete(files: Mapping[str, str], about: Mapping[str, object]) -> dict[str, bytes]:
    """All files as bytes, the manifest with their hashes among them."""
    contents = {name: text.encode() for name, text in sorted(files.items())}
    hashes = {name: sha256(content).hexdigest() for name, content in contents.items()}
    document = json.dumps({**about, "files": hashes}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return {**contents, MANIFEST: document.encode()}


def _key(contents: Mapping[str, bytes]) -> str:
    """The manifest holds the hash of every file, so its own hash names them all."""
    return sha256(contents[MANIFEST]).hexdigest()[:32]


def _intact(target: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether every file is there with exactly these bytes; anything else is damaged or stale, and is rebuilt."""
    return target.is_dir() and all((target / name).is_file() and (target / name).read_bytes() == data for name, data in contents.items())


def _replace(target: Path, contents: Mapping[str, bytes]) -> None:
    """Write beside the target, then take its place by renames."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, data in contents.items():
            with open(fresh / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        os.chmod(fresh, 0o755)
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            os.rename(target, old / "old")
            os.rename(fresh, target)
            shutil.rmtree(old)
        else:
            os.rename(fresh, target)
    finally:
        if fresh.exists():
            shutil.rmtree(fresh)


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
