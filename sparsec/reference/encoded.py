"""Stores of zones: payload as it was encoded when rows entered a zone. Arrays span every token; rows that never entered are 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference import codec
from sparsec.reference.evaluate import evaluate
from sparsec.reference.moment import Moment
from sparsec.reference.program import Unsupported

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64}


@dataclass(slots=True, eq=False)
class Encoded:
    """One store of one layer, over the store's letters: decoded values, and codes with scale and minimum where it has them."""

    letters: tuple[str, ...]
    values: Tensor | None = None
    codes: Tensor | None = None
    scale: Tensor | None = None
    minimum: Tensor | None = None


def coded(store: t.Store, x: Tensor, letters: tuple[str, ...], at: Moment) -> codec.Coded | Tensor:
    """The rows of one head, encoded as the store's dtype says; plain dtypes round through themselves."""
    dtype = store.dtype.name.text
    if dtype == "int":
        options = {word.name.text: word.value for word in store.dtype.keywords}
        if not {"along", "block"} <= set(options) or "rotate" in options:
            raise Unsupported("an int store without along and block, or with rotate", store.dtype)
        axis = letters.index(options["along"].name.text)
        zero = evaluate(options["zero"], at) if "zero" in options else False
        bits, block = int(evaluate(store.dtype.args[0], at)), int(evaluate(options["block"], at))
        return codec.quantise(x, axis, block, bits, zero)
    if dtype in ("f32", "f16", "bf16", "model"):
        return x if dtype == "model" else x.to(DTYPES[dtype]).to(x.dtype)
    if dtype == "fp8" and not store.dtype.keywords:
        return x.to(torch.float8_e4m3fn).to(x.dtype)
    raise Unsupported(f"a store of dtype {dtype}", store.dtype)


def write(kept: Encoded, where: tuple, what: codec.Coded | Tensor, like: Tensor) -> None:
    """Put freshly encoded rows into the arrays of a store, which have the shape of `like`."""
    parts = {"values": what} if isinstance(what, Tensor) else {
        "values": what.values, "codes": what.codes, "scale": what.scale, "minimum": what.minimum}  # fmt: skip
    axis = kept.letters.index("t")
    for name, part in parts.items():
        array = getattr(kept, name)
        array = torch.zeros(like.shape, dtype=part.dtype) if array is None else padded(array, axis, like.shape[axis] - array.shape[axis])
        array[where] = part
        setattr(kept, name, array)


def padded(array: Tensor, axis: int, missing: int) -> Tensor:
    """With `missing` zero entries at the end of an axis."""
    if missing == 0:
        return array
    shape = list(array.shape)
    shape[axis] = missing
    return torch.cat((array, torch.zeros(shape, dtype=array.dtype)), axis)
