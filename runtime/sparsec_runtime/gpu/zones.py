"""The decode attention of a method with two zones: what gpu/forward.py launches for it, and the room that its items need."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from torch import Tensor

from ..layout import PARTS, WORDS_OF_A_SPAN
from ..storage import Storage
from ..zones import PackedStore, RawStore
from .blocks import pow2, tile_of
from .buffers import K_PACKED, V_PACKED, DecodeBuffers
from .tuning import Tuning


def zone_pointers(storage: Storage, buffers: DecodeBuffers, layer: int, known: list[str]) -> dict[str, Tensor]:
    """The pools and tables of both zones by the names of the generated kernel's arguments; `known`: those that it has."""
    older, newest = storage.zone_names
    found: dict[str, Tensor] = {}
    for part, letter in zip(PARTS, "kv"):
        store, tail = storage.stores[older, part], storage.stores[newest, part]
        assert isinstance(tail, RawStore), f"zone '{newest}' holds new rows and must be raw"
        if isinstance(store, PackedStore):
            words, scale, low = store.arrays
            found |= {f"{letter}_ptr": words.of(layer), f"{letter}_scale_ptr": scale.of(layer), f"{letter}_low_ptr": (low or scale).of(layer)}
        else:
            found[f"{letter}_ptr"] = store.pool(layer)
        found |= {
            f"{letter}_tail_ptr": tail.pool(layer), f"{letter}_table_ptr": buffers.tables[store.stream.name],
            f"{letter}_tail_table_ptr": buffers.tables[tail.stream.name],
        }  # fmt: skip
    return {name: value for name, value in found.items() if name in known}


def attend_two_zones(
    kernels: ModuleType, storage: Storage, layer: int, buffers: DecodeBuffers, tuning: Tuning, scale2: float, heads: Mapping[str, int],
    options: Mapping[str, bool],
) -> None:  # fmt: skip
    """buffers.attended of buffers.q. heads: the constants H, G, GP, D, DP; options: of the launch."""
    size, programs = tuning.zones, tuning.zones.programs * tuning.multiprocessors
    older, newest = (storage.stream_of(zone, "K") for zone in storage.zone_names)
    held, packed = buffers.held_of(layer), (buffers.header[K_PACKED], buffers.header[V_PACKED])
    common = {"entries": buffers.rows, "EP": tile_of(buffers.rows), "CHUNK": size.chunk, "REST": size.rest}
    assert size.chunk % (8 * _step(storage)) == 0, f"an eighth of {size.chunk} tokens is no multiple of {_step(storage)}"
    exact = buffers.q.element_size() == 4  # products in registers alone: they take more of them than one warp has
    kernels.attend_zones[(min(buffers.part.shape[0], programs),)](
        buffers.q, **zone_pointers(storage, buffers, layer, kernels.attend_zones.arg_names), len_ptr=held, k_packed_ptr=packed[0], v_packed_ptr=packed[1],
        part_ptr=buffers.part, lse_ptr=buffers.part_lse, scale2=scale2, table_row=buffers.tables[older.name].stride(0),
        tail_row=buffers.tables[newest.name].stride(0), **common, **{**heads, "GP": max(8, pow2(heads["G"]))}, PAGE=older.geometry.page_size,
        TAIL_PAGE=newest.geometry.page_size, TILE=16, STAGES=size.stages, EXACT=exact, PLAIN=exact or not tuning.assembly, num_warps=max(4, size.warps) if exact else size.warps, **options,
    )  # fmt: skip
    kernels.merge_zones[(buffers.rows, heads["H"] * heads["G"])](
        buffers.part, buffers.part_lse, held, *packed, buffers.attended, **common, H=heads["H"], G=heads["G"], D=heads["D"], DP=heads["DP"],
        TILE=64 if buffers.ids.is_cuda else 32, num_warps=4, **options,
    )  # fmt: skip


def _step(storage: Storage) -> int:
    """Tokens that one step of the older zone's attention reads: the longest span of K and V."""
    stores = [storage.stores[storage.zone_names[0], part] for part in PARTS]
    return max(store.codec.span if isinstance(store, PackedStore) else WORDS_OF_A_SPAN for store in stores)
