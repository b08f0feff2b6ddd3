"""States that follow no row: dtypes and shapes of declared states, plain states of a request, shared states of a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .layout import StateLayout

DTYPES = {
    "f32": torch.float32,
    "float32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "int": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "bool": torch.bool,
    "set": torch.bool,
}


def dtype_of(name: str, model: torch.dtype) -> torch.dtype:
    """A dtype of the language; `model` is that of K and V."""
    if name == "model":
        return model
    assert name in DTYPES, f"dtype '{name}' is unknown to the runtime: {', '.join(DTYPES)}"
    return DTYPES[name]


def extents(letters: tuple[str, ...], declared: Mapping[str, int], facts: Mapping[str, float | int]) -> tuple[int, ...]:
    """Sizes of index letters; those of declared domains come with the layout."""
    sizes = {
        "l": facts["n_layers"], "h": facts["kv_heads"], "g": facts["group"], "c": facts["head_dim"], "d": facts["head_dim"],
        "x": facts["kv_width"], **declared,
    }  # fmt: skip
    return tuple(int(sizes[letter]) for letter in letters)


def initial_plain(layout: StateLayout, facts: Mapping[str, float | int], model: torch.dtype, device: torch.device) -> Tensor:
    """[layer, *letters]; a state with the letter l is visible across layers and has no layer axis beside it."""
    own = extents(layout.letters, layout.sizes, facts)
    shape = own if "l" in layout.letters else (int(facts["n_layers"]), *own)
    return torch.full(shape, layout.initial, dtype=dtype_of(layout.dtype, model), device=device)
