"""What a method may know about a model before any weight is read: counts, widths and sizes from its config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparsec_runtime.models.errors import ModelError
from sparsec_runtime.models.shape import DTYPE_BYTES, ModelShape, resolve_shape

from sparsec.failures import CommandError


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes in bytes. `read_bytes`: weights that a decode step reads (of an untied input embedding only a row is)."""

    name: str
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    context: int
    scale: float
    dtype: str
    dtype_bytes: int
    weight_bytes: int
    read_bytes: int

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q_heads // self.kv_heads

    @property
    def kv_width(self) -> int:
        """Values of one row over all KV heads, K and V side by side."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Of raw K and V over all layers."""
        return self.layers * self.kv_width * self.dtype_bytes

    def names(self) -> dict[str, int | float]:
        """The facts under the names that the language gives them."""
        return {
            "n_layers": self.layers,
            "kv_heads": self.kv_heads,
            "group": self.group,
            "head_dim": self.head_dim,
            "kv_width": self.kv_width,
            "hidden_width": self.hidden,
            "scale": self.scale,
            "context": self.context,
        }


def load_model_facts(name_or_path: str | Path) -> ModelFacts:
    """Facts of a preset, a model directory or a .gguf file; raises CommandError where there is none."""
    try:
        return from_shape(resolve_shape(name_or_path))
    except ModelError as error:
        raise CommandError(str(error)) from error


def from_shape(shape: ModelShape) -> ModelFacts:
    dtype_bytes = DTYPE_BYTES[shape.dtype]
    embedding = 0 if shape.tied else shape.vocab * shape.hidden * dtype_bytes
    return ModelFacts(
        name=shape.name,
        layers=shape.layers,
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        hidden=shape.hidden,
        vocab=shape.vocab,
        context=shape.max_positions,
        scale=shape.scale,
        dtype=shape.dtype,
        dtype_bytes=dtype_bytes,
        weight_bytes=shape.weight_bytes,
        read_bytes=shape.weight_bytes - embedding,
    )
