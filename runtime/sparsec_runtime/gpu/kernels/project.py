"""A projection of a few rows: the weights stream through once, which is all the time it takes. For shapes where the vendor's library reads them slower."""

import triton
import triton.language as tl

from .chain import after_previous, fetch_ahead, let_next


@triton.jit
def project(
    x_ptr, w_ptr, bias_ptr, out_ptr, rows, width, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr = 0, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """out [row, width] = x [row, DEPTH] times w [width, DEPTH], transposed; program: BN outputs of all rows. BN divides width, BK divides DEPTH.

    AHEAD: channels of each weight row that are fetched while the kernel before still runs.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    if AHEAD > 0:
        line = tl.arange(0, AHEAD // 64) * 64  # of 128 bytes
        fetch_ahead(w_ptr + n[:, None].to(tl.int64) * DEPTH + line[None, :], CHAINED)
    after_previous(CHAINED)
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    x_at = x_ptr + m[:, None] * DEPTH + k[None, :]
    w_at = w_ptr + n[:, None].to(tl.int64) * DEPTH + k[None, :]
    real = (m < rows)[:, None]
    total = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, DEPTH, BK, num_stages=STAGES):
        x = tl.load(x_at + start, real, 0.0)
        total = tl.dot(x, tl.trans(tl.load(w_at + start)), total)
    let_next(CHAINED)
    if BIAS:
        total += tl.load(bias_ptr + n).to(tl.float32)[None, :]
    tl.store(out_ptr + m[:, None] * width + n[None, :], total.to(out_ptr.dtype.element_ty), real)
