"""Attention of one prompt chunk over contiguous K and V where only the future is hidden: a causal square and an open prefix, merged by log-sum-exp.

cuDNN attends the pieces whose shapes cuts.py names, because it builds a plan per shape (and per thread); a Triton kernel attends what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .blocks import pow2, tile_of
from ..decode_plan import Reduction
from .cuts import Cuts
from ..zones import Pieces
from .kernels.prefill import attend_rows, mass_of_rows, merge_two

LOG2E = 1.4426950408889634
MERGED_QUERIES = 32  # of one program of a merge
RUN = 8  # queries under one head that follow each other where columns are summed (kernels/prefill.py, given)


@dataclass(frozen=True, slots=True)
class Part:
    """Attention over some of the rows. out [query, head, channel], the last axis contiguous; lse [head, query] fp32, natural: log of the sum of exp(logits)."""

    out: Tensor
    lse: Tensor


class ChunkAttention:
    """cuts None: cuDNN does not serve the model (cuts.reasons_against_cudnn)."""

    def __init__(self, q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, cuts: Cuts | None) -> None:
        self.q_heads, self.kv_heads, self.head_dim, self.dtype, self.device, self.cuts = q_heads, kv_heads, head_dim, dtype, device, cuts
        self._ready_on: set[int] = set()  # threads whose plans are built

    def __call__(self, queries: Tensor, keys: Pieces, values: Pieces, scale: float) -> tuple[Tensor, Tensor]:
        """queries [1, query, kv_head, group, channel]; keys, values of [kv_head, token, channel], the chunk's own rows the newest.

        Returns the output, like queries, and lse [q_head, query].
        """
        if get_ident() not in self._ready_on:
            self.warm_up()
        q = queries[0].flatten(1, 2).contiguous()
        merged = merge(self._parts(q, keys, values, scale))
        return merged.out.reshape(queries.shape), merged.lse.contiguous()

    @torch.no_grad()
    def warm_up(self) -> None:
        """Builds every plan that a chunk can need on the calling thread, and compiles the kernels beside them."""
        if self.cuts is not None:
            shapes = [(min(size, self.cuts.chunk), size, True) for size in self.cuts.squares]
            shapes += [(asked, size, False) for asked in (self.cuts.chunk, *self.cuts.shorter) for size in self.cuts.prefixes]
            for queries, tokens, causal in shapes:
                q = self._zeros(queries, self.q_heads)
                kv = self._zeros(tokens, self.kv_heads).transpose(0, 1)
                _bucketed(q, tokens if causal else queries, kv, kv, tokens, 1.0, causal)
        self._compile()
        self._ready_on.add(get_ident())

    def _compile(self) -> None:
        q, kv = self._zeros(1, self.q_heads), self._zeros(1, self.kv_heads).reshape(self.kv_heads, 1, self.head_dim)
        one, _ = (through_triton(q, kv, kv, 1.0, causal) for causal in (True, False))
        for count in (2, 4):  # with and without parts between that are not rounded
            merge([one] * count)

    def _zeros(self, tokens: int, heads: int) -> Tensor:
        return torch.zeros((tokens, heads, self.head_dim), dtype=self.dtype, device=self.device)

    def _parts(self, q: Tensor, keys: Pieces, values: Pieces, scale: float) -> list[Part]:
        """q [query, head, channel]. Every row lies in one part: the prefix's pieces, its rest, the square."""
        queries, tokens = q.shape[0], keys.tokens
        square = None if self.cuts is None else self.cuts.square_of(queries)
        if self.cuts is None or square is None:
            return [through_triton(q, keys.of(0, tokens), values.of(0, tokens), scale, causal=True)]
        parts, first, prefix = [], 0, tokens - queries
        padded = self.cuts.padded(queries)
        for size in self.cuts.pieces_of(prefix, queries):
            parts.append(_bucketed(q, padded, keys.of(first, first + size), values.of(first, first + size), size, scale, causal=False))
            first += size
        if first < prefix:
            parts.append(through_triton(q, keys.of(first, prefix), values.of(first, prefix), scale, causal=False))
        return [*parts, _bucketed(q, square, keys.of(prefix, tokens), values.of(prefix, tokens), square, scale, causal=True)]


def _bucketed(q: Tensor, queries: int, keys: Tensor, values: Tensor, tokens: int, scale: float, causal: bool) -> Part:
    """One piece in the shape of its bucket. Zeros pad it at the end: a causal query sees none of them, and what padding asks for is dropped."""
    asked = _plain(_filled(q, 0, queries))[None].transpose(1, 2)
    k, v = (_plain(_filled(x, 1, tokens))[None] for x in (keys, values))
    out, lse = through_cudnn(asked, k, v, scale, causal)
    return Part(out[0].transpose(0, 1)[: q.shape[0]], lse[0, :, : q.shape[0]])


def _filled(x: Tensor, axis: int, size: int, value: float = 0.0) -> Tensor:
    """x with `value` up to `size`."""
    missing = size - x.shape[axis]
    return F.pad(x, (0, 0) * (x.ndim - 1 - axis) + (0, missing), value=value) if missing else x  # F.pad by nothing would be a copy


def _plain(x: Tensor) -> Tensor:
    """x contiguous whatever it was: a plan holds for its strides too, those of axes of size 1 included."""
    return x.reshape(-1).view(x.shape)


def through_cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """q [1, q_head, query, channel]; k, v [1, kv_head, token, channel] -> out like q, lse [1, q_head, query]."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
    return found[0], found[1].reshape(q.shape[:3])


def through_triton(q: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Part:
    """q [query, head, channel] over keys, values [kv_head, token, channel]; causal: the newest of them are the queries' own."""
    queries, heads, channels = q.shape
    keys, values = _by_rows(keys), _by_rows(values)
    out = torch.empty_like(q)
    lse = torch.empty((heads, queries), dtype=torch.float32, device=q.device)
    padded, exact = tile_of(channels), q.dtype == torch.float32
    block, tile, warps, stages = attention_sizes(padded, exact)
    attend_rows[(-(-queries // block), heads)](
        q, keys, values, out, lse, keys.shape[1], queries, keys.stride(0), values.stride(0), scale * LOG2E,
        HEADS=heads, G=heads // keys.shape[0], D=channels, DP=padded, BM=block, BN=tile, CAUSAL=causal, STAGES=stages, EXACT=exact, num_warps=warps,
    )  # fmt: skip
    return Part(out, lse)


def merge(parts: list[Part]) -> Part:
    """Attention over all rows; the parts are added in their order, in fp32 until the last."""
    merged, dtype = parts[0], parts[-1].out.dtype
    for n, part in enumerate(parts[1:], start=2):
        merged = _merged(merged, part, dtype if n == len(parts) else torch.float32)
    return merged


def _merged(a: Part, b: Part, dtype: torch.dtype) -> Part:
    queries, heads, channels = a.out.shape
    out = torch.empty((queries, heads, channels), dtype=dtype, device=a.out.device)
    lse = torch.empty((heads, queries), dtype=torch.float32, device=a.out.device)
    merge_two[(-(-queries // MERGED_QUERIES), heads)](
        a.out, a.lse, b.out, b.lse, out, lse, queries, *a.out.stride()[:2], a.lse.stride(0), *b.out.stride()[:2], b.lse.stride(0),
        HEADS=heads, D=channels, DP=tile_of(channels), BLOCK=MERGED_QUERIES, num_warps=4,
    )  # fmt: skip
    return Part(out, lse)


def column_mass(queries: Tensor, keys: Tensor, lse: Tensor, scale: float, over_g: Reduction) -> Tensor:
    """What a chunk's attention gave each row: the sum over its queries of the sum, mean or max over g, [1, kv_head, token] fp32.

    queries [1, query, kv_head, group, channel]; keys [1, kv_head, token, channel]; lse [q_head, query], as ChunkAttention returns it.
    """
    _, asked, heads, group, channels = queries.shape
    k = _by_rows(keys[0])
    exact = queries.dtype == torch.float32
    block, tile, warps, stages = mass_sizes(tile_of(channels), exact)
    each, run = group, RUN
    if over_g == "max":  # it is taken inside a tile, over a power of two
        each = pow2(group)
        tile, run = max(tile, each), max(1, min(RUN, tile // each))
    q = _in_runs(_filled(queries[0], 3, -(-channels // 16) * 16), run, each, tile, 0.0)
    lse2 = _in_runs(lse.unflatten(0, (heads, group)).permute(2, 0, 1) * LOG2E, run, each, tile, float("inf"))
    mass = torch.empty((1, heads, k.shape[1]), dtype=torch.float32, device=q.device)
    mass_of_rows[(-(-k.shape[1] // block), heads)](
        TensorDescriptor.from_tensor(q.flatten(0, 1), [tile, tile_of(channels)]), lse2, k, mass, k.shape[1], asked, lse2.shape[1], k.stride(0),
        scale * LOG2E, G=group, E=each, D=channels, DP=tile_of(channels), BT=block, BQ=tile, RUN=run, OVER_G=over_g, STAGES=stages, EXACT=exact,
        num_warps=warps,
    )  # fmt: skip
    return mass


def _in_runs(x: Tensor, run: int, each: int, tile: int, nothing: float) -> Tensor:
    """x [query, kv_head, group, ...] as the kernel of the mass reads it: [kv_head, pair, ...], `nothing` in the place of queries and heads that are not there."""
    queries, heads, group = x.shape[:3]
    runs = -(-queries // run)
    real, pairs = runs * each * run, -(-runs * each * run // tile) * tile
    whole = _filled(x, 0, runs * run, nothing).unflatten(0, (runs, run)).movedim((2, 0, 3, 1), (0, 1, 2, 3))
    made = x.new_empty((heads, pairs, *x.shape[3:]))
    if real < pairs or each > group:
        made.fill_(nothing)
    made[:, :real].unflatten(1, (runs, each, run))[:, :, :group].copy_(whole)
    return made


def attention_sizes(channels: int, exact: bool) -> tuple[int, int, int, int]:
    """Queries and rows of a tile, warps, stages: what an H200's registers and shared memory hold (benchmarks/compile_kernels.py)."""
    if exact:
        return (16, 16, 4, 1) if channels > 128 else (32, 32, 8, 1)
    return (128, 64, 8, 2) if channels > 128 else (128, 64, 8, 3)


def mass_sizes(channels: int, exact: bool) -> tuple[int, int, int, int]:
    """Rows of a tile, pairs of a query and a head in it, warps, stages."""
    if exact:
        return attention_sizes(channels, exact)
    return (128, 64, 8, 2) if channels > 128 else (128, 128, 8, 2)


def _by_rows(x: Tensor) -> Tensor:
    """[kv_head, token, channel] whose rows follow each other, as the kernels read it; any distance between heads."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
