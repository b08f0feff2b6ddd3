"""Projections of a few rows: the weights stream through once, which is all the time they take. For shapes where the vendor's library reads them slower.

out [row, width] = x [row, DEPTH] times w [width, DEPTH], transposed. A program makes BN outputs of all rows; BN divides width, BK divides DEPTH.
"""

import triton
import triton.language as tl

from .chain import after_previous, let_next


@triton.jit
def project(
    x_ptr, w_ptr, bias_ptr, out_ptr, rows, width, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr,
    BIAS: tl.constexpr, STAGES: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """Program (outputs, split): out [split, row, width], each split over its share of DEPTH; add_rms_norm adds the splits up in their order."""
    after_previous(CHAINED)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    split = tl.program_id(1)
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    x_at = x_ptr + m[:, None] * DEPTH + k[None, :]
    w_at = w_ptr + n[:, None].to(tl.int64) * DEPTH + k[None, :]
    real = (m < rows)[:, None]
    share: tl.constexpr = DEPTH // SPLITS
    total = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(split * share, split * share + share, BK, num_stages=STAGES):
        total = tl.dot(tl.load(x_at + start, real, 0.0), tl.trans(tl.load(w_at + start)), total)
    let_next(CHAINED)
    if BIAS:
        total += tl.load(bias_ptr + n).to(tl.float32)[None, :]
    tl.store(out_ptr + (split * rows + m[:, None]) * width + n[None, :], total.to(out_ptr.dtype.element_ty), real)


@triton.jit
def project_gated(
    x_ptr, w_ptr, out_ptr, rows, width, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """out = silu(gate) * up, where w [2 * width, DEPTH] holds the weights of gate, then of up: no tensor of both is ever written."""
    after_previous(CHAINED)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    x_at = x_ptr + m[:, None] * DEPTH + k[None, :]
    w_at = w_ptr + n[:, None].to(tl.int64) * DEPTH + k[None, :]
    up_at = w_at + tl.cast(width, tl.int64) * DEPTH
    real = (m < rows)[:, None]
    gate, up = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, DEPTH, BK, num_stages=STAGES):
        x = tl.load(x_at + start, real, 0.0)
        gate = tl.dot(x, tl.trans(tl.load(w_at + start)), gate)
        up = tl.dot(x, tl.trans(tl.load(up_at + start)), up)
    let_next(CHAINED)
    kind = out_ptr.dtype.element_ty
    gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out_ptr + m[:, None] * width + n[None, :], (active * up).to(kind), real)
