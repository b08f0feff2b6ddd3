"""Device functions that generated decode kernels are written with: units, work items, products, rotation. Part of the ABI of generated code.

A unit is one page of one head; a table names a page by (row, index), or by (row, head, index) where heads hold different counts (`per_head`). There a page is a unit,
else a unit is page * H + h.

A work item of attention is one chunk of tokens of one (row, head). Items are numbered by the lengths, whole chunks first and the short rests last, so mixed and
ragged lengths spread evenly over a persistent grid; within a batch bucket a row's chunks depend on its own length alone.
"""

import triton
import triton.language as tl

ALWAYS = tl.constexpr(1.0e30)  # the worth of a page that is always read


@triton.jit
def unit_of(page, h, H: tl.constexpr):
    """Unit number of a page of head h, 64 bit: pools exceed 2^31 elements."""
    return page.to(tl.int64) * H + h


@triton.jit
def lengths_of(len_ptr, entries, EP: tl.constexpr):
    """Lengths [EP] of all entries: rows, or (row, head) where heads hold different counts."""
    e = tl.arange(0, EP)
    return e, tl.load(len_ptr + e, e < entries, 0)


@triton.jit
def chunk_sizes(lengths, CHUNK: tl.constexpr):
    """By length alone: tokens of a chunk (CHUNK of long rows), number of whole chunks, and whether a shorter rest follows them."""
    size = tl.where(lengths > 16 * CHUNK, CHUNK, tl.where(lengths >= 2 * CHUNK, CHUNK // 2, CHUNK // 8))
    return size, lengths // size, (lengths % size > 0).to(tl.int32)


@triton.jit
def product(a, b, EXACT: tl.constexpr):
    """a [m, k] times b [k, n] in fp32; EXACT: fp32 inputs are not rounded to tf32."""
    if EXACT:
        return tl.dot(a, b, input_precision="ieee")
    else:
        return tl.dot(a, b)


@triton.jit
def rotated(x_ptr, weight_ptr, cos_ptr, sin_ptr, c, half, D: tl.constexpr, eps, NORM: tl.constexpr):
    """One head's vector after its norm and after RoPE (half-split pairs), fp32 [D padded]."""
    x = tl.load(x_ptr + c, c < D, 0.0).to(tl.float32)
    turning = c < 2 * half
    partner = tl.where(c < half, c + half, c - half)
    other = tl.load(x_ptr + partner, turning, 0.0).to(tl.float32)
    if NORM:
        kind = x_ptr.dtype.element_ty
        shrink = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
        x = ((x * shrink).to(kind).to(tl.float32) * tl.load(weight_ptr + c, c < D, 0.0).to(tl.float32)).to(kind).to(tl.float32)
        other = ((other * shrink).to(kind).to(tl.float32) * tl.load(weight_ptr + partner, turning, 0.0).to(tl.float32)).to(kind).to(tl.float32)
    pair = tl.where(c < half, c, c - half)
    cos = tl.load(cos_ptr + pair, turning, 1.0)
    sin = tl.load(sin_ptr + pair, turning, 0.0)
    return x * cos + tl.where(c < half, -other, other) * sin
