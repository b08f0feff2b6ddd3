"""What surrounds attention in a decoder layer: residual + RMSNorm, SiLU x mul, the start of a step and the ids of greedy rows.

One row of the batch is one token. `width`: hidden channels. Sums are fp32; values are rounded to the model's dtype where transformers rounds them.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next

@triton.jit
def begin_step(
    ids_ptr, pos_ptr, len_ptr, embed_ptr, x_ptr, freq_ptr, cos_ptr, sin_ptr, width, scaling, half, rows,
    BLOCK: tl.constexpr, HALF: tl.constexpr, RANKS: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """x[row] = embed[ids[row]]; cos, sin [0, row, half] of the angle pos[row] * freq, and with RANKS [1, row, half] of (len[row] - 1) * freq."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.maximum(tl.load(ids_ptr + row), 0).to(tl.int64)  # -1: the last step's logits were no numbers, which the host learns later
    tl.store(x_ptr + row * width + c, tl.load(embed_ptr + token * width + c, c < width), c < width)
    if tl.program_id(1) == 0:
        pair = tl.arange(0, HALF)
        freq = tl.load(freq_ptr + pair, pair < half, 0.0)
        angle = tl.load(pos_ptr + row).to(tl.float32) * freq
        tl.store(cos_ptr + row * half + pair, tl.cos(angle) * scaling, pair < half)
        tl.store(sin_ptr + row * half + pair, tl.sin(angle) * scaling, pair < half)
        if RANKS:
            angle = (tl.load(len_ptr + row) - 1).to(tl.float32) * freq
            tl.store(cos_ptr + (rows + row) * half + pair, tl.cos(angle) * scaling, pair < half)
            tl.store(sin_ptr + (rows + row) * half + pair, tl.sin(angle) * scaling, pair < half)


@triton.jit
def add_rms_norm(
    x_ptr, delta_ptr, weight_ptr, out_ptr, width, eps, rows, SPLITS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False
):
    """x += the sum of delta [split, row, width], in place; out = rms_norm(x) * weight. One program a row; SPLITS 0: nothing is added."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < width
    x = tl.load(x_ptr + row * width + c, inside, 0.0)
    if SPLITS > 0:
        delta = tl.load(delta_ptr + row * width + c, inside, 0.0).to(tl.float32)
        for split in tl.static_range(1, SPLITS):
            delta += tl.load(delta_ptr + (split * rows + row) * width + c, inside, 0.0).to(tl.float32)
        x = (x.to(tl.float32) + delta.to(x_ptr.dtype.element_ty).to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row * width + c, x, inside)
    wide = x.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)).to(x_ptr.dtype.element_ty)
    weight = tl.load(weight_ptr + c, inside, 0.0)
    tl.store(out_ptr + row * width + c, (normed.to(tl.float32) * weight.to(tl.float32)).to(out_ptr.dtype.element_ty), inside)


@triton.jit
def silu_mul(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False):
    """out[row, c] = silu(gate[row, c]) * up[row, c]; gate_up [row, 2 * width] holds gate, then up."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < width
    gate = tl.load(gate_up_ptr + row * 2 * width + c, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * width + width + c, inside, 0.0)
    active = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + c, (active.to(tl.float32) * up.to(tl.float32)).to(out_ptr.dtype.element_ty), inside)


@triton.jit
def best_of_part(logits_ptr, best_ptr, id_ptr, vocab, parts, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False):
    """The largest logit of each part of the vocabulary and its id, ties to the lower; a NaN wins, as id -1."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row, part = tl.program_id(0), tl.program_id(1)
    c = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row * vocab + c, c < vocab, -float("inf")).to(tl.float32)
    bad = tl.max((x != x).to(tl.int32), 0) > 0
    x = tl.where(x != x, -float("inf"), x)
    best = tl.max(x, 0)
    where = tl.min(tl.where(x == best, c, 2147483647), 0)
    tl.store(best_ptr + row * parts + part, tl.where(bad, float("inf"), best))
    tl.store(id_ptr + row * parts + part, tl.where(bad, -1, where))


@triton.jit
def best_of_row(best_ptr, part_id_ptr, ids_ptr, parts, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False):
    """ids[row]: the best of the row's parts, which feeds the next step; -1 where a logit was no number."""
    after_previous(CHAINED)
    let_next(CHAINED)
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * parts + part, part < parts, -float("inf"))
    ids = tl.load(part_id_ptr + row * parts + part, part < parts, 2147483647)
    tl.store(ids_ptr + row, tl.min(tl.where(best == tl.max(best, 0), ids, 2147483647), 0).to(tl.int64))
