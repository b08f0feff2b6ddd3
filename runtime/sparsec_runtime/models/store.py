"""The store of converted models in the user's cache: where it lies, one writer at a time, publishing by rename, and detecting damage.

An entry is a directory with a manifest of its files. Sizes and modification times are compared on every load (microseconds); contents are
hashed again only where a time differs, so a damaged file is found without reading half a gigabyte on each run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from .errors import ModelError

MANIFEST = "sparsec-entry.json"


def cache_root() -> Path:
    """$SPARSEC_CACHE, else sparsec in the XDG cache directory."""
    if chosen := os.environ.get("SPARSEC_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparsec"


def models_dir() -> Path:
    return cache_root() / "models"


def downloads_dir() -> Path:
    return cache_root() / "downloads"


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Holds the store's lock for `name`; a holder that dies lets go of it."""
    lock = FileLock(models_dir() / f".{name}.lock")
    try:
        models_dir().mkdir(parents=True, exist_ok=True)
        downloads_dir().mkdir(exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise ModelError(f"cannot write to the cache {cache_root()}: {error}", "set SPARSEC_CACHE to a directory that you may write to") from error
    try:
        yield
    finally:
        lock.release()


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(entry: Path, origin: str) -> None:
    """Writes the manifest that makes a directory an entry; `origin` names what it was made from, and by which converter."""
    files = {path.name: _facts(path) | {"sha256": sha256_of(path)} for path in sorted(entry.iterdir())}
    (entry / MANIFEST).write_text(json.dumps({"origin": origin, "files": files}, indent=1), encoding="utf-8")


def is_intact(entry: Path, origin: str) -> bool:
    """Whether every file of the entry is what `seal` saw, and was made from `origin`."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        return manifest["origin"] == origin and all(_is_unchanged(entry / name, facts) for name, facts in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # a manifest that is missing, cut short or not ours


def publish(work: Path, entry: Path) -> None:
    """Moves a finished directory into place. Readers see the old entry or the new one, never a mixture."""
    if entry.exists():
        retired = Path(tempfile.mkdtemp(prefix=_work_prefix(entry.name), dir=entry.parent))
        entry.rename(retired / entry.name)
        work.rename(entry)
        shutil.rmtree(retired)
    else:
        work.rename(entry)


def new_work_dir(parent: Path, name: str) -> Path:
    """A fresh directory in `parent`, after sweeping what killed writers of `name` left there. Call it inside `exclusive`."""
    for left in parent.glob(_work_prefix(name) + "*"):
        shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_work_prefix(name), dir=parent))


@contextmanager
def work_dir(parent: Path, name: str) -> Iterator[Path]:
    """`new_work_dir`, removed afterwards unless it was published."""
    work = new_work_dir(parent, name)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _work_prefix(name: str) -> str:
    return f".work-{name}-"


def _facts(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _is_unchanged(path: Path, facts: dict[str, object]) -> bool:
    now = _facts(path)
    if now["size"] != facts["size"]:
        return False
    return now["mtime_ns"] == facts["mtime_ns"] or sha256_of(path) == facts["sha256"]
