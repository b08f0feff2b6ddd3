"""What prompts leave in the pools of an engine, with kernels that settle rows and without: shared by the tests of both devices."""

from __future__ import annotations

import numpy as np
import torch
from engines import SMALL, add, prompt
from sparsec_runtime.engine import Engine
from torch import Tensor

LENGTHS = (7, 70, 33, 130)
CASES = (
    ("kivi", {}), ("kivi", {"flush": "blocks"}), ("kivi", {"k_bits": 4, "v_bits": 2}), ("kivi", {"k_bits": 8, "v_bits": 8, "flush": "blocks"}),
    ("snapkv", {}), ("snapkv", {"evict_in_prefill": True}), ("h2o", {}), ("h2o", {"positions": "cache"}), ("streamingllm", {}), ("tova", {}),
    ("pyramidkv", {}), ("pyramidkv", {"evict_in_prefill": True}), ("ada_snapkv", {}), ("ada_snapkv", {"evict_in_prefill": True}),
)  # fmt: skip


def params_of(method: str, more: dict[str, object]) -> dict[str, object]:
    return {**SMALL[method], **({"block": 8, "residual": 16} if method == "kivi" else {}), **more}


def after_prompts(made: Engine) -> dict[tuple[object, ...], Tensor]:
    """What lies in the rows of each request, by (request, layer, zone and part or array), once all prompts are read; they go on decoding after that."""
    for n, length in enumerate(LENGTHS):
        add(made, prompt(length, seed=n), 4, name=f"row {n}")
    while any(made.progress(f"row {n}") < length for n, length in enumerate(LENGTHS)):
        made.step()
    storage, found = made.manager.storage, {}
    for n in range(len(LENGTHS)):
        sequence = made.manager.sequence(made._requests[f"row {n}"].handle)
        at = storage.addresses([sequence])
        for layer in range(storage.layers):
            for (zone, part), rows in sequence.zone_rows.items():
                store = storage.stores[zone, part]
                found[n, layer, zone, part] = of_heads(store.read(at[store.stream.name], layer, int(rows.max())), rows[layer])
            arrays = {name: array for name, (_, array) in storage.token_states.items()} | ({} if storage.positions is None else {"pos": storage.positions})
            for name, array in arrays.items():
                found[n, layer, name] = of_heads(array.gather(layer, at[storage.row_stream.name].units(layer)), sequence.rows[layer])
    return found


def of_heads(values: Tensor, rows: np.ndarray) -> Tensor:
    """The rows that each head holds, one head behind another: values [1, kv_head, token, ...], rows [kv_head]."""
    return torch.cat([values[0, head, :held] for head, held in enumerate(rows)]).cpu()


def assert_same(found: dict[tuple[object, ...], Tensor], wanted: dict[tuple[object, ...], Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in found.items():
        torch.testing.assert_close(value, wanted[key], rtol=2e-5, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")
