"""From an artifact directory to its CacheManager class. Needs nothing of the compiler.

The files are verified against the manifest and imported as a package of their own, under a name made from content and place, so that
several artifacts live side by side and tracebacks show real lines.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from .abi import ABI_VERSION, CacheManager

MANIFEST = "manifest.json"


class ArtifactError(Exception):
    """An artifact that must not be used: names the file and the reason."""


def load_artifact(directory: str | Path) -> type[CacheManager]:
    """The generated CacheManager of an artifact, with its FACTS. Raises ArtifactError where a file is missing, changed or of another ABI."""
    root = Path(directory)
    files = _verify(root)
    name = f"sparsec_artifact_{sha256((root / MANIFEST).read_bytes() + bytes(root.resolve())).hexdigest()[:16]}"
    if f"{name}.manager" not in sys.modules:
        _import(name, root, files)
    manager: type[CacheManager] = sys.modules[f"{name}.manager"].Manager
    manager.FACTS = json.loads((root / "facts.json").read_text(encoding="utf-8"))
    return manager


def _verify(root: Path) -> frozenset[str]:
    """Names of the files that the manifest lists."""
    path = root / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        for name, expected in manifest["files"].items():
            if sha256((root / name).read_bytes()).hexdigest() != expected:
                raise ArtifactError(f"{root / name} was changed after it was compiled: compile the method again")
    except OSError as error:
        raise ArtifactError(f"{error.filename or root}: {error.strerror}: compile the method again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} is not a manifest ({error}): compile the method again") from error
    if manifest.get("abi") != ABI_VERSION:
        raise ArtifactError(f"{root} was compiled for ABI {manifest.get('abi')}, this runtime has {ABI_VERSION}: compile the method again")
    return frozenset(manifest["files"])


def _import(name: str, root: Path, files: frozenset[str]) -> None:
    """A package without a file of its own, and its two modules: all or none. The decode kernels import Triton, so they wait until a step asks."""
    package = ModuleType(name)
    package.__path__ = [str(root)]
    sys.modules[name] = package
    try:
        for child in ("kernels", "manager"):
            setattr(package, child, _load(f"{name}.{child}", root / f"{child}.py"))
        if "decode.py" in files:
            package.manager.Manager.decode_kernels = staticmethod(cache(lambda: _load(f"{name}.decode", root / "decode.py")))
    except BaseException:
        for module in (name, f"{name}.kernels", f"{name}.manager"):
            sys.modules.pop(module, None)
        raise


class _SourceAlone(SourceFileLoader):
    """Reads no cached bytecode, which nothing has verified, and writes none beside the verified files."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceAlone(name, str(path)))
    assert spec is not None and spec.loader is not None, f"no loader for {path}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
