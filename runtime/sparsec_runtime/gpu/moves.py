"""Moves of the oldest rows of the newest zone into the older one, encoded where that one holds codes: two launches a part for all layers, no read of the device.

They run between two graphs, in the steps after which the host's counts say that rows go, and at the end of a chunk of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ..decode_plan import Moves
from ..layout import Part
from ..planning import ZoneRows
from ..sequence import Sequence
from ..storage import Storage
from ..zones import PackedStore, RawStore
from .blocks import pow2
from .kernels.encode import copy_rows, encode_rows, shift_rows
from .transfer import sent


Counts = Mapping[Part, np.ndarray]  # of each sequence [3, row] int32: rows that move, that lie in the older zone, and that lie in the newest, new ones counted


def move_rows(storage: Storage, moves: Moves, tables: Mapping[str, Tensor], counts: Counts) -> None:
    """The oldest rows of each sequence go to the older zone, as many as the counts say. tables: of each stream [row, 1, index] int32."""
    for numbers, (part, host) in zip(sent(np.stack(list(counts.values())), storage.device), counts.items()):
        if host[0].any():
            _move_part(storage, moves, part, tables, numbers, host)


def counts_of_step(moves: Moves, sequences: list[Sequence], after: list[ZoneRows]) -> Counts:
    """Of a decode step, after which each sequence is to hold the rows of `after`."""
    def of(part: Part) -> np.ndarray:
        packed = np.array([sequence.zone_rows[moves.to, part][0, 0] for sequence in sequences])
        held = np.array([sequence.zone_rows[moves.zone, part][0, 0] for sequence in sequences]) + 1
        return np.stack([np.array([rows[moves.to, part][0, 0] for rows in after]) - packed, packed, held]).astype(np.int32)

    return {part: of(part) for part in moves.parts}


def _move_part(storage: Storage, moves: Moves, part: Part, tables: Mapping[str, Tensor], numbers: Tensor, host: np.ndarray) -> None:
    tail, older = storage.stores[moves.zone, part], storage.stores[moves.to, part]
    assert isinstance(tail, RawStore), f"rows leave zone '{moves.zone}', which must be raw"
    table, target = tables[tail.stream.name], tables[older.stream.name]
    (moved, packed, held), data = numbers, tail.rows.data
    places, width = len(moved) * storage.heads, pow2(storage.head_dim)
    common = {"H": storage.heads, "D": storage.head_dim, "DP": width}
    pages = {"FROM_PAGE": tail.stream.geometry.page_size, "PAGE": older.stream.geometry.page_size}
    if isinstance(older, PackedStore):
        codec, (words, scale, low) = older.codec, older.arrays
        rows = codec.page_multiple
        runs = int((-(-(host[0] + host[1]) // rows) - host[1] // rows).max())
        encode_rows[(places, storage.layers, runs)](
            data, words.data, scale.data, scale.data if low is None else low.data, table, target, moved, packed,
            data.stride(0), words.data.stride(0), scale.data.stride(0), table.stride(0), target.stride(0), **common, **pages, ROWS=rows,
            BITS=codec.bits, ALONG_T=codec.along == "t", BLOCK=codec.block, ZERO=codec.zero, num_warps=4,
        )  # fmt: skip
    else:
        to = older.rows.data
        copy_rows[(places, storage.layers, -(-int(host[0].max()) // 32))](
            data, to, table, target, moved, packed, data.stride(0), to.stride(0), table.stride(0), target.stride(0), **common, **pages, ROWS=32, num_warps=4
        )
    if (host[2] > host[0])[host[0] > 0].any():
        shift_rows[(places, storage.layers)](
            data, table, moved, held, data.stride(0), table.stride(0), **common, PAGE=pages["FROM_PAGE"], TILE=32 if data.is_cuda else 16, num_warps=4
        )
