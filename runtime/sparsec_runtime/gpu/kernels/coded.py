"""Device functions for rows that lie as codes of a group quantiser (codecs.py says the format): scales and minima, values from words. Part of the ABI of generated code.

Attention reads a zone in tiles of 16 consecutive rows: the codes at one place of 16 words. K's tiles are [16, DP] and V's [DP, 16], each the first operand of a
product, so that codes are taken out of words in the layout in which tensor cores read them and nothing changes lanes afterwards.

A number that comes out of a word by one instruction is its code plus `lift`: the code's bits in the mantissa of 2^bits. Nothing that is rounded to 16 bits takes part in
removing the lift: K's scales go into the query, whose products with the lift are subtracted in fp32; a multiply-add makes code times scale of V, and V's minima have a product
of their own. Where neither applies, a second instruction takes the lift off first.
"""

import triton
import triton.language as tl

from .tools import product, unit_of

ROWS = tl.constexpr(16)  # of a tile


@triton.constexpr_function
def lift_of(bits, plain):
    """By how much numbers exceed their codes: 0 where they are made from integers (`plain`: without PTX; 8 bits do not fit in a mantissa)."""
    return 0.0 if plain or bits == 8 else 2.0**bits


@triton.constexpr_function
def _decode_text(bits, j, half, then):
    """PTX: the codes j of two words ($1) as numbers; then "" or what follows, in $0; half: bf16 or f16."""
    mantissa, bias = (7, 127) if half == "bf16" else (10, 15)
    depth = mantissa - bits  # a code's bits are the mantissa's highest
    by = j * bits - depth
    shift = f"shr.u32 a, $1, {by};" if by > 0 else f"shl.b32 a, $1, {-by};"
    mask, base = (2**bits - 1) << depth, (bias + bits) << mantissa
    one, lift = bias << mantissa, 0x8000 | base
    last = {
        "": "mov.b32 $0, a;",
        "scaled": f"fma.rn.{half}x2 $0, a, $2, $3;",
        "decoded": f"mov.b32 m, 0x{one:04X}{one:04X}; mov.b32 o, 0x{lift:04X}{lift:04X}; fma.rn.{half}x2 a, a, m, o; fma.rn.{half}x2 $0, a, $2, $3;",
    }[then]
    return f"""{{
        .reg .b32 a, m, o;
        {shift}
        lop3.b32 a, a, 0x{mask:04X}{mask:04X}, 0x{base:04X}{base:04X}, 0xEA;
        {last}
    }}"""


@triton.jit
def numbers(words, J: tl.constexpr, BITS: tl.constexpr, PLAIN: tl.constexpr, kind: tl.constexpr):
    """The codes J of words, plus lift_of(BITS, PLAIN), as `kind`."""
    if PLAIN or BITS == 8:
        return ((words >> (J * BITS)) & (2**BITS - 1)).to(kind)
    elif kind == tl.bfloat16:
        return tl.inline_asm_elementwise(_decode_text(BITS, J, "bf16", ""), "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    else:
        return tl.inline_asm_elementwise(_decode_text(BITS, J, "f16", ""), "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2)


@triton.jit
def _multiplied(words, scale, low, THEN: tl.constexpr, J: tl.constexpr, BITS: tl.constexpr):
    if scale.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            _decode_text(BITS, J, "bf16", THEN), "=r,r,r,r", [words, scale, low], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        return tl.inline_asm_elementwise(
            _decode_text(BITS, J, "f16", THEN), "=r,r,r,r", [words, scale, low], dtype=tl.float16, is_pure=True, pack=2
        )


@triton.jit
def decoded(words, scale, low, J: tl.constexpr, BITS: tl.constexpr, PLAIN: tl.constexpr):
    """Values of the codes J of words, in the type of the scales."""
    if PLAIN or BITS == 8:
        return numbers(words, J, BITS, PLAIN, scale.dtype) * scale + low
    else:
        return _multiplied(words, scale, low, "decoded", J, BITS)


@triton.jit
def weighed(words, scale, off, J: tl.constexpr, BITS: tl.constexpr, PLAIN: tl.constexpr):
    """Codes J of words by their scales; off: of `channel_scales`, exact."""
    if PLAIN or BITS == 8:
        return numbers(words, J, BITS, PLAIN, scale.dtype) * scale
    else:
        return _multiplied(words, scale, off, "scaled", J, BITS)


@triton.jit
def below_zero(scale, BITS: tl.constexpr):
    """The minimum of a codec that stores none: codes lie around half of their range."""
    return scale * (-(2.0 ** (BITS - 1)))


@triton.jit
def spread(values, AXIS: tl.constexpr, TIMES: tl.constexpr):
    """Each entry of a tile TIMES times along an axis."""
    a: tl.constexpr = values.shape[0]
    b: tl.constexpr = values.shape[1]
    if TIMES == 1:
        return values
    elif AXIS == 0:
        return tl.reshape(tl.broadcast_to(values[:, None, :], a, TIMES, b), a * TIMES, b)
    else:
        return tl.reshape(tl.broadcast_to(values[:, :, None], a, b, TIMES), a, b * TIMES)


@triton.jit
def groups_of(ptr, unit, slot, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ALONG_T: tl.constexpr, BLOCK: tl.constexpr, FLIP: tl.constexpr):
    """Scales or minima of the tile from `slot` on: [ROWS, DP], or [DP, ROWS] if FLIP."""
    c, t, g = tl.arange(0, DP), tl.arange(0, ROWS), tl.arange(0, DP // BLOCK)
    of: tl.constexpr = min(BLOCK, ROWS)
    n = tl.arange(0, ROWS // of)
    blocks = unit * (PAGE // BLOCK) + slot // BLOCK + n
    channels = (unit * (D // BLOCK) + g) * PAGE + slot
    if ALONG_T and FLIP:
        return spread(tl.load(ptr + blocks[None, :] * D + c[:, None], (c < D)[:, None], 0.0), 1, of)
    elif ALONG_T:
        return spread(tl.load(ptr + blocks[:, None] * D + c[None, :], (c < D)[None, :], 0.0), 0, of)
    elif FLIP:
        return spread(tl.load(ptr + channels[:, None] + t[None, :], (g < D // BLOCK)[:, None], 0.0), 0, BLOCK)
    else:
        return spread(tl.load(ptr + channels[None, :] + t[:, None], (g < D // BLOCK)[None, :], 0.0), 1, BLOCK)


@triton.jit
def scales_of(
    scale_ptr, low_ptr, unit, slot, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr, ALONG_T: tl.constexpr,
    BLOCK: tl.constexpr, ZERO: tl.constexpr, FLIP: tl.constexpr,
):  # fmt: skip
    """Scales and minima of a tile."""
    scale = groups_of(scale_ptr, unit, slot, PAGE, D, DP, ALONG_T, BLOCK, FLIP)
    if ZERO:
        return scale, groups_of(low_ptr, unit, slot, PAGE, D, DP, ALONG_T, BLOCK, FLIP)
    else:
        return scale, below_zero(scale, BITS)


@triton.jit
def channel_scales(
    scale_ptr, low_ptr, unit, slot, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, ZERO: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Of a tile of V with blocks of channels: scales and what `weighed` adds [DP, ROWS], minima [GROUPS, ROWS] of a product's first operand, 0 from D / BLOCK on."""
    scale = groups_of(scale_ptr, unit, slot, PAGE, D, DP, False, BLOCK, True)
    rows: tl.constexpr = max(16, DP // BLOCK)
    g, t = tl.arange(0, rows), tl.arange(0, ROWS)
    at = (unit * (D // BLOCK) + g)[:, None] * PAGE + slot + t[None, :]
    if ZERO:
        low = tl.load(low_ptr + at, (g < D // BLOCK)[:, None], 0.0)
    else:
        low = below_zero(tl.load(scale_ptr + at, (g < D // BLOCK)[:, None], 0.0), BITS)
    return scale, scale * -lift_of(BITS, PLAIN), low


@triton.jit
def with_minima(out, lows, DP: tl.constexpr, BLOCK: tl.constexpr):
    """out [DP, GP] plus what the minima of each block of channels give, lows [>= DP / BLOCK, GP]."""
    groups: tl.constexpr = DP // BLOCK
    rows: tl.constexpr = lows.shape[0]
    if rows > groups:
        same = tl.arange(0, groups)[:, None] == tl.arange(0, rows)[None, :]
        lows = tl.sum(tl.where(same[:, :, None], lows[None, :, :], 0.0), 1)
    return out + spread(lows, 0, BLOCK)


@triton.jit
def folded(
    q, scale_ptr, low_ptr, unit, slot, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    ZERO: tl.constexpr, EXACT: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """q [DP, GP] times the scales of one block of tokens, and what its minima give every one of a tile's rows [ROWS, GP]: products of q and K are

    sum_c q scale code + sum_c q low = sum_c (q scale) number + sum_c q low - lift * sum_c (q scale).
    """
    c = tl.arange(0, DP)
    line = (unit * (PAGE // BLOCK) + slot // BLOCK) * D + c
    scale = tl.load(scale_ptr + line, c < D, 0.0)
    scaled = q * scale[:, None]
    lift: tl.constexpr = lift_of(BITS, PLAIN)
    if ZERO:
        rest = product(tl.broadcast_to(tl.load(low_ptr + line, c < D, 0.0)[None, :], ROWS, DP), q, EXACT)
        if lift > 0:
            rest += product(tl.full([ROWS, DP], -lift, q.dtype), scaled, EXACT)
    else:
        rest = product(tl.full([ROWS, DP], -lift - 2.0 ** (BITS - 1), q.dtype), scaled, EXACT)
    return scaled, rest


@triton.jit
def lines_of(ptr, unit, slot, STEP: tl.constexpr, EACH: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, FLIP: tl.constexpr):
    """The STEP rows from `slot` on as they are stored: a tuple of tiles of words with EACH rows in a word, or of values where EACH is 1."""
    c, n = tl.arange(0, DP), tl.arange(0, ROWS)
    found = ()
    for first in tl.static_range(0, STEP, ROWS * EACH):
        line = unit * (PAGE // EACH) + (slot + first) // EACH + n
        if FLIP:
            found = found + (tl.load(ptr + line[None, :] * D + c[:, None], (c < D)[:, None], 0),)
        else:
            found = found + (tl.load(ptr + line[:, None] * D + c[None, :], (c < D)[None, :], 0),)
    return found


@triton.jit
def whole_steps(k_packed_ptr, v_packed_ptr, entries, EP: tl.constexpr, STEP: tl.constexpr):
    """Tokens of each row of the batch [EP] that lie in the older zone with both parts, in whole steps: what is read of them needs no mask."""
    e = tl.arange(0, EP)
    return tl.minimum(tl.load(k_packed_ptr + e, e < entries, 0), tl.load(v_packed_ptr + e, e < entries, 0)) // STEP * STEP


@triton.jit
def rows_of(ptr, table_at, h, rank, here, H: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """Raw K or V [n, DP] of the rows `rank` of a zone, 0 where not `here`."""
    c = tl.arange(0, DP)
    line = unit_of(tl.load(table_at + rank // PAGE, here, 0), h, H) * PAGE + rank % PAGE
    return tl.load(ptr + line[:, None] * D + c[None, :], here[:, None] & (c < D)[None, :], 0.0)


@triton.jit
def decoded_rows(
    ptr, scale_ptr, low_ptr, table_at, h, rank, here, H: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BITS: tl.constexpr, ALONG_T: tl.constexpr, BLOCK: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """K or V [n, DP] of any coded rows `rank` of a zone, 0 where not `here`: a word is read for each row."""
    each: tl.constexpr = 16 // BITS
    c = tl.arange(0, DP)
    unit = unit_of(tl.load(table_at + rank // PAGE, here, 0), h, H)
    slot = rank % PAGE
    inside = here[:, None] & (c < D)[None, :]
    line = unit * (PAGE // each) + slot // (ROWS * each) * ROWS + slot % ROWS
    words = tl.load(ptr + line[:, None] * D + c[None, :], inside, 0).to(tl.int32)
    g = tl.arange(0, DP // BLOCK)
    if ALONG_T:
        at, known = (unit * (PAGE // BLOCK) + slot // BLOCK)[:, None] * D + c[None, :], inside
    else:
        at, known = (unit[:, None] * (D // BLOCK) + g[None, :]) * PAGE + slot[:, None], here[:, None] & (g < D // BLOCK)[None, :]
    times: tl.constexpr = 1 if ALONG_T else BLOCK
    scale = tl.load(scale_ptr + at, known, 0.0)
    if ZERO:
        low = tl.load(low_ptr + at, known, 0.0)
    else:
        low = below_zero(scale, BITS)
    code = (words >> (slot % (ROWS * each) // ROWS * BITS)[:, None]) & (2**BITS - 1)
    return code.to(scale.dtype) * spread(scale, 1, times) + spread(low, 1, times)
