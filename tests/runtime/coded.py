"""Two zones as plain tensors: random rows, quantised by codecs.py, on pages in random order; what attention over them must give."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sparsec_runtime.codecs import dequantise, pack, quantise
from sparsec_runtime.gpu.blocks import pow2
from sparsec_runtime.layout import Codec
from torch import Tensor


@dataclass(eq=False)
class PartPools:
    """K or V of all rows: the older zone's lines, scales and minima, the tail, tables of both [row, index], and every row as it reads [row, head, token, channel]."""

    lines: Tensor
    scale: Tensor
    low: Tensor
    tail: Tensor
    table: Tensor
    tail_table: Tensor
    packed: Tensor
    rows: list[Tensor]


def paged(rows: list[Tensor], page: int, generator: torch.Generator, junk: float) -> tuple[Tensor, Tensor]:
    """Lines [head, line, ...] of each row on pages of `page` lines in random order: pool [unit, line, ...], table [row, index]; the rest of a page is junk."""
    heads = rows[0].shape[0]
    counts = [-(-row.shape[1] // page) for row in rows]
    order = torch.randperm(sum(counts), generator=generator) + 1
    pool = torch.full((sum(counts) + 1, heads, page, *rows[0].shape[2:]), junk).to(rows[0].dtype)
    table = torch.zeros(len(rows), max(1, *counts), dtype=torch.int32)
    first = 0
    for n, (row, count) in enumerate(zip(rows, counts)):
        mine = order[first : first + count]
        table[n, :count] = mine
        for line in range(row.shape[1]):
            pool[mine[line // page], :, line % page] = row[:, line]
        first += count
    return pool.flatten(0, 1), table


def part_pools(lengths: list[tuple[int, int]], codec: Codec | None, heads: int, dim: int, pages: tuple[int, int], dtype: torch.dtype, seed: int) -> PartPools:
    """lengths: rows held and rows in the older zone; pages: rows of a page of the older zone and of the tail."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(heads, held, dim, generator=generator).to(dtype) for held, _ in lengths]
    older = [row[:, :packed] for row, (_, packed) in zip(values, lengths)]
    tail, tail_table = paged([row[:, packed:] for row, (_, packed) in zip(values, lengths)], pages[1], generator, float("nan"))
    packed = torch.tensor([packed for _, packed in lengths], dtype=torch.int32)
    if codec is None:
        lines, table = paged(older, pages[0], generator, float("nan"))
        return PartPools(lines, lines, lines, tail, table, tail_table, packed, values)
    stored = [quantise(row, codec) if row.shape[1] else None for row in older]
    read = [row if found is None else dequantise(found, codec) for row, found in zip(older, stored)]
    block = codec.block if codec.along == "t" else 1
    empty = torch.zeros(heads, 0, dim, dtype=torch.int16)
    words = [empty if found is None else pack(_filled(found.codes, codec.span), codec.bits) for found in stored]
    inner = dim if codec.along == "t" else dim // codec.block
    nothing = torch.zeros(heads, 0, inner, dtype=dtype)
    state = generator.get_state()
    pools = []
    for lines, page, junk in (
        (words, pages[0] * codec.bits // 16, -1.0), ([nothing if s is None else s.scale for s in stored], pages[0] // block, float("nan")),
        ([nothing if s is None or s.minimum is None else s.minimum for s in stored], pages[0] // block, float("nan")),
    ):  # fmt: skip
        generator.set_state(state)  # one order of pages for all arrays of a zone
        pools.append(paged(lines, page, generator, junk) if codec.zero or lines[0].shape[2:] else (lines[0], tail_table))
    (lines, table), (scale, _), (low, _) = pools
    if codec.along == "c":
        scale, low = (pool.mT.contiguous() for pool in (scale, low))  # a page's rows side by side
    rows = [torch.cat((old, new[:, old.shape[1] :]), 1) for old, new in zip(read, values)]
    return PartPools(lines, scale, low if codec.zero else scale, tail, table, tail_table, packed, rows)


def _filled(codes: Tensor, span: int) -> Tensor:
    """Codes up to a whole span, which later rows would fill: anything may stand there."""
    return torch.cat((codes, codes.new_full((codes.shape[0], -codes.shape[1] % span, codes.shape[2]), 1)), 1)


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [head * group, channel] over k, v [head, token, channel], in fp64."""
    group = q.shape[0] // k.shape[0]
    k, v = k.double().repeat_interleave(group, 0), v.double().repeat_interleave(group, 0)
    return torch.einsum("hs,hsd->hd", torch.softmax(torch.einsum("hd,hsd->hs", q.double(), k) * scale, -1), v)


def attend(kernels: object, k: PartPools, v: PartPools, lengths: list[int], q: Tensor, pages: tuple[int, int], device: str, **sizes: int) -> Tensor:
    """out [row, head * group, channel] of the generated kernels."""
    rows, q_heads, dim = q.shape
    heads = k.rows[0].shape[0]
    group = q_heads // heads
    held = torch.tensor(lengths, dtype=torch.int32, device=device)
    chunk, rest = sizes.get("CHUNK", 1024), sizes.get("REST", 32)
    items = heads * sum(18 + n // (chunk // 8) + n // rest for n in lengths)
    part, lse = torch.full((items, group, dim), float("nan"), device=device), torch.full((items, group), float("nan"), device=device)
    out = torch.full(q.shape, float("nan"), device=device, dtype=q.dtype)
    width = 1 << (dim - 1).bit_length()
    common = {"entries": rows, "EP": sizes.get("EP", 16), "H": heads, "G": group, "D": dim, "DP": width, "CHUNK": chunk, "REST": rest}
    moved = {name: getattr(pools, field).to(device) for pools, letter in ((k, "k"), (v, "v")) for name, field in (
        (f"{letter}_ptr", "lines"), (f"{letter}_scale_ptr", "scale"), (f"{letter}_low_ptr", "low"), (f"{letter}_tail_ptr", "tail"),
        (f"{letter}_packed_ptr", "packed"),
    )}  # fmt: skip
    table, tail_table = ([getattr(pools, name) for pools in (k, v)] for name in ("table", "tail_table"))
    for letter, pair in (("k", 0), ("v", 1)):
        for name, tables in ((f"{letter}_table_ptr", table), (f"{letter}_tail_table_ptr", tail_table)):
            columns = max(one.shape[1] for one in tables)
            moved[name] = torch.nn.functional.pad(tables[pair], (0, columns - tables[pair].shape[1])).to(device)
    moved = {name: value for name, value in moved.items() if name in kernels.attend_zones.arg_names}
    kernels.attend_zones[(5,)](
        q_ptr=q.to(device), **moved, len_ptr=held, part_ptr=part, lse_ptr=lse, scale2=dim**-0.5 * 1.4426950408889634,
        table_row=moved["k_table_ptr"].stride(0), tail_row=moved["k_tail_table_ptr"].stride(0), **common, GP=max(8, pow2(group)), PAGE=pages[0], TAIL_PAGE=pages[1],
        TILE=16, STAGES=sizes.get("STAGES", 1), EXACT=q.dtype == torch.float32, PLAIN=q.dtype == torch.float32 or not sizes.get("assembly", 1),
        num_warps=sizes.get("warps", 4),
    )  # fmt: skip
    kernels.merge_zones[(rows, q_heads)](
        part, lse, held, moved["k_packed_ptr"], moved["v_packed_ptr"], out, TILE=32, **common, num_warps=4
    )
    return out.cpu()
