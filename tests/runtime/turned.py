"""The generated attention that turns keys at their ranks, against plain attention in fp64, on any device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from sparsec_runtime.gpu.blocks import pow2, tile_of
from sparsec_runtime.gpu.buffers import turns
from sparsec_runtime.rope import Rope
from torch import Tensor

from sparsec.diagnostics import Source
from sparsec.pipeline import Compilation, load_manager

PAGE = 16
LOG2_E = 1.4426950408889634
PER_HEAD = (
    "sparse 1\nmethod mine {\n  zone main {\n    decode K[t, h, c] = rope(K_raw[t, h, c], order(t))\n  }\n  state score[t, h]: f32 = 0\n"
    "  on after_decode_attention, after_prefill_attention {\n    score[t, h] += sum[i](sum[g](probs[i, h, g, t]))\n  }\n"
    "  on finish_step when len > 40 {\n    evict keep top[t, h](score[t, h], 80)\n  }\n}\n"
)


@dataclass(frozen=True)
class Case:
    """lengths: of rows, or of (row, head)s one after the other. rotary: channels that turn; None: all."""

    lengths: tuple[int, ...]
    heads: int
    group: int
    dim: int
    rotary: int | None = None
    scaling: float = 1.0
    tells: bool = False
    per_head: bool = False
    dtype: torch.dtype = torch.float32
    chunk: int = 32
    tile: int = 16
    padded_entries: int = 1  # at least

    @property
    def rope(self) -> Rope:
        plain = Rope.plain(10000.0, self.rotary or self.dim)
        return Rope(plain.inv_freq, self.scaling)


@cache
def kernels(per_head: bool):
    made = Compilation(Source("mine.sparse", PER_HEAD)) if per_head else Compilation.load("h2o", params={"positions": "cache"})
    return load_manager(made).decode_kernels()


def assert_attends_at_ranks(case: Case, device: str, tolerance: float = 2e-6) -> None:
    torch.manual_seed(case.dim + case.group)
    q, k, v, out, logits, row_lse = _attended(case, device)
    scale = case.dim**-0.5
    for entry, length in enumerate(case.lengths):
        for h in [entry % case.heads] if case.per_head else range(case.heads):
            row = entry // case.heads if case.per_head else entry
            found, asked = out[row, h], q[row, h].double()
            if length == 0:
                assert (found == 0).all(), "what holds nothing attends to nothing"
                continue
            keys, values = k[entry][h].double(), v[entry][h].double()
            cos, sin = (angle.double() for angle in case.rope.to(device).cos_sin(torch.arange(length, device=device)))
            keys = case.rope.rotate(keys[:, None], cos, sin)[:, 0]
            asked = case.rope.rotate(asked[None], cos[-1:], sin[-1:])[0]
            scores = asked @ keys.T * scale
            wanted = scores.softmax(-1) @ values
            error = ((found.double() - wanted).norm() / wanted.norm()).item()
            assert error < tolerance, (length, h, error)
            near = max(1e-4, 4 * tolerance)
            assert torch.allclose(row_lse[row, h].double() / LOG2_E, scores.logsumexp(-1), atol=near), length
            if case.tells:
                assert torch.allclose(logits[row, h, :, :length].double() / LOG2_E, scores, atol=near), length


def _attended(case: Case, device: str) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
    """q [row, head, group, channel] before RoPE; K before RoPE and V of each entry [head, token, channel]; out like q; logits; row_lse [row, head, group]."""
    heads, group, dim, entries = case.heads, case.group, case.dim, len(case.lengths)
    rows = entries // heads if case.per_head else entries
    pages = [-(-n // PAGE) for n in case.lengths]
    order = torch.randperm(sum(pages), device=device).to(torch.int32) + 1
    table = torch.zeros((entries, max(pages)), dtype=torch.int32, device=device)
    for entry, places in enumerate(order.split(pages)):
        table[entry, : len(places)] = places
    each = 1 if case.per_head else heads
    k_pool, v_pool = (torch.randn((sum(pages) + 1, each, PAGE, dim), device=device, dtype=case.dtype) for _ in "kv")
    q = torch.randn((rows, heads, group, dim), device=device, dtype=case.dtype)
    held = torch.tensor(case.lengths, dtype=torch.int32, device=device)
    part = torch.full((entries * each * 40, group, dim), float("nan"), device=device)
    lse = part.new_full(part.shape[:2], float("nan"))
    out, row_lse = torch.full_like(q, float("nan")), torch.full((rows, heads, group), float("nan"), device=device)
    logits = torch.full((rows, heads, group, max(case.lengths)), float("nan"), device=device)
    rope, made = case.rope.to(device), kernels(case.per_head)
    common = {"entries": entries, "EP": max(pow2(entries), case.padded_entries), "H": heads, "G": group, "D": dim, "CHUNK": case.chunk}
    tells = {"logits_ptr": logits, "logits_row": logits.shape[3]}
    strides = {"table_row": table.stride(0) * heads, "table_head": table.stride(0)} if case.per_head else {"table_row": table.stride(0)}
    (made.attend_rows_and_tell if case.tells else made.attend_rows)[(7,)](
        q, k_pool, v_pool, table, held, freq_ptr=rope.inv_freq, turn_ptr=turns(rope, case.tile + 1), part_ptr=part, lse_ptr=lse,
        **(tells if case.tells else {}), scale2=dim**-0.5 * LOG2_E, scaling=rope.scaling, **strides, GP=tile_of(group), DP=tile_of(dim),
        HALF=rope.dim // 2, PAIRS=tile_of(dim // 2), PAGE=PAGE, TILE=case.tile, STAGES=2, EXACT=case.dtype == torch.float32, **common,
    )  # fmt: skip
    made.merge_chunks[(rows, heads * group)](part, lse, held, out, row_lse, DP=pow2(dim), TILE=32, **common)
    k, v = ([pool[table[n].long()].transpose(0, 1).flatten(1, 2)[:, :length] for n, length in enumerate(case.lengths)] for pool in (k_pool, v_pool))
    if case.per_head:
        k, v = ([rows.expand(heads, -1, -1) for rows in part] for part in (k, v))
    return q, k, v, out, logits, row_lse
