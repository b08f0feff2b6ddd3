"""The start of a layer of a prompt chunk in one launch, where torch makes twenty that each read and write all queries or keys (writing.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..resident import Resident
from ..zones import RawStore
from .blocks import pow2
from .kernels.chunk import write_chunk


def write_chunk_rows(resident: Resident, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Stores K and V of one request's chunk; q [1, token, q_head, channel] and k, v [1, token, kv_head, channel] before RoPE.

    K lies turned at its logical position, in a raw zone. Returns the turned queries [1, token, kv_head, group, channel].
    """
    storage, step = resident.storage, resident.step
    tokens, heads, channels = q.shape[1:]
    keys, values = (storage.stores[storage.newest_zone, part] for part in ("K", "V"))
    assert isinstance(keys, RawStore) and isinstance(values, RawStore), f"zone '{storage.newest_zone}' takes new rows, which are raw"
    q, k, v = (x if x.stride()[2:] == (channels, 1) else x.contiguous() for x in (q, k, v))
    cos, sin = step.memo("new angles", 0, lambda: storage.rope.cos_sin(step.query_pos))
    out = torch.empty((1, tokens, heads, channels), dtype=q.dtype, device=q.device)
    units = [step.addresses[store.stream.name].units(resident.layer) for store in (keys, values)]
    firsts = [step.on_device(resident.stored_rows[storage.newest_zone, part] - step.tokens) for part in ("K", "V")]  # [1, kv_head]
    half, tile = storage.rope.dim // 2, 32 if q.is_cuda else 16
    write_chunk[(-(-tokens // tile), heads + 2 * storage.heads)](
        q, k, v, cos, sin, out, keys.pool(resident.layer), values.pool(resident.layer), *units, *firsts,
        tokens, q.stride(1), k.stride(1), v.stride(1), cos.stride(1), *(unit.stride(1) for unit in units),
        HQ=heads, H=storage.heads, D=channels, DP=pow2(channels), HALF=half, HALF_PADDED=pow2(half), PAGE=keys.stream.geometry.page_size, TILE=tile,
        num_warps=4,
    )  # fmt: skip
    return out.unflatten(2, (storage.heads, -1))
