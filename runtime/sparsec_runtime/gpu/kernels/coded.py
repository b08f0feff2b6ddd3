"""Device functions for rows that lie as codes of a group quantiser (codecs.py says the format): scales and minima, values from words. Part of the ABI of generated code.

A word holds consecutive tokens of one channel. Attention does not depend on the order of tokens, so tile j of a step holds the j-th token of each of W runs of
tokens: codes are shifted out of registers and nothing changes lanes.
"""

import triton
import triton.language as tl

from .tools import unit_of


@triton.constexpr_function
def _decode_text(bits, j, half):
    """PTX: values of the codes j of two words ($1, $2) by their scales ($3) and minima ($4); half: bf16 or f16.

    Code bits OR-ed into the mantissa of 2^m are the number 2^m + code * 2^depth: an exact multiply-add gives the code, up to three codes need no shift.
    """
    mantissa, bias = (7, 127) if half == "bf16" else (10, 15)
    side, place = divmod(j * bits, 16)
    depth = place % (mantissa // bits * bits)
    base = (bias + mantissa) << mantissa
    mask = (2**bits - 1) << depth
    one, off = (bias - depth) << mantissa, 0x8000 | ((bias + mantissa - depth) << mantissa)
    return f"""{{
        .reg .b32 a, m, o;
        prmt.b32 a, $1, $2, {"0x7632" if side else "0x5410"};
        shr.u32 a, a, {place - depth};
        lop3.b32 a, a, 0x{mask:04X}{mask:04X}, 0x{base:04X}{base:04X}, 0xEA;
        mov.b32 m, 0x{one:04X}{one:04X};
        mov.b32 o, 0x{off:04X}{off:04X};
        fma.rn.{half}x2 a, a, m, o;
        fma.rn.{half}x2 $0, a, $3, $4;
    }}"""


@triton.jit
def decoded(words, scale, low, J: tl.constexpr, BITS: tl.constexpr, EXACT: tl.constexpr):
    """Values of the codes J of words, in the type of the scales."""
    if EXACT or BITS == 8:
        return ((words >> (J * BITS)) & (2**BITS - 1)).to(scale.dtype) * scale + low
    elif scale.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            _decode_text(BITS, J, "bf16"), "=r,r,r,r,r", [words, scale, low], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        return tl.inline_asm_elementwise(
            _decode_text(BITS, J, "f16"), "=r,r,r,r,r", [words, scale, low], dtype=tl.float16, is_pure=True, pack=2
        )


@triton.jit
def below_zero(scale, BITS: tl.constexpr):
    """The minimum of a codec that stores none: codes lie around half of their range."""
    return scale * (-(2.0 ** (BITS - 1)))


@triton.jit
def groups_of(
    ptr, unit, slot, here, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ALONG_T: tl.constexpr, BLOCK: tl.constexpr
):
    """Scales or minima of the rows `slot` [n]: [n, DP] along tokens; [n, DP // BLOCK] along channels, which `spread` makes [n, DP]."""
    if ALONG_T:
        c = tl.arange(0, DP)
        line = unit * (PAGE // BLOCK) + slot // BLOCK
        return tl.load(ptr + line[:, None] * D + c[None, :], here[:, None] & (c < D)[None, :], 0.0)
    else:
        group = tl.arange(0, DP // BLOCK)
        line = unit * PAGE + slot
        return tl.load(ptr + line[:, None] * (D // BLOCK) + group[None, :], here[:, None] & (group < D // BLOCK)[None, :], 0.0)


@triton.jit
def spread(values, ALONG_T: tl.constexpr, BLOCK: tl.constexpr):
    """Scales or minima for each channel [n, DP]."""
    if ALONG_T:
        return values
    else:
        n: tl.constexpr = values.shape[0]
        groups: tl.constexpr = values.shape[1]
        return tl.reshape(tl.broadcast_to(values[:, :, None], n, groups, BLOCK), n, groups * BLOCK)


@triton.jit
def scales_of(
    scale_ptr, low_ptr, unit, token, end, first, COUNT: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BITS: tl.constexpr, ALONG_T: tl.constexpr, BLOCK: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """Scales and minima of the tokens `token` + j for COUNT j from `first` on: two tuples of tiles; 0 from token `end` on."""
    scales, lows = (), ()
    slot = token % PAGE
    for j in tl.static_range(COUNT):
        scale = groups_of(scale_ptr, unit, slot + first + j, token + first + j < end, PAGE, D, DP, ALONG_T, BLOCK)
        scales = scales + (scale,)
        if ZERO:
            lows = lows + (groups_of(low_ptr, unit, slot + first + j, token + first + j < end, PAGE, D, DP, ALONG_T, BLOCK),)
        else:
            lows = lows + (below_zero(scale, BITS),)
    return scales, lows


@triton.jit
def lines_of(ptr, unit, token, end, SPAN: tl.constexpr, EACH: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """The SPAN tokens from each `token` [W] on as they are stored, EACH a line: a tuple of tiles [W, DP] of words, or of values where EACH is 1."""
    c = tl.arange(0, DP)
    found = ()
    for n in tl.static_range(0, SPAN, EACH):
        line = unit * (PAGE // EACH) + (token % PAGE + n) // EACH
        inside = (token + n < end)[:, None] & (c < D)[None, :]
        found = found + (tl.load(ptr + line[:, None] * D + c[None, :], inside, 0),)
    return found


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
    each: tl.constexpr = 32 // BITS
    c = tl.arange(0, DP)
    unit = unit_of(tl.load(table_at + rank // PAGE, here, 0), h, H)
    slot = rank % PAGE
    line = unit * (PAGE // each) + slot // each
    words = tl.load(ptr + line[:, None] * D + c[None, :], here[:, None] & (c < D)[None, :], 0)
    scale = groups_of(scale_ptr, unit, slot, here, PAGE, D, DP, ALONG_T, BLOCK)
    if ZERO:
        low = groups_of(low_ptr, unit, slot, here, PAGE, D, DP, ALONG_T, BLOCK)
    else:
        low = below_zero(scale, BITS)
    code = (words >> ((slot % each) * BITS)[:, None]) & (2**BITS - 1)
    return code.to(scale.dtype) * spread(scale, ALONG_T, BLOCK) + spread(low, ALONG_T, BLOCK)
