"""The oldest rows of a raw zone become codes of an older zone (codecs.py says the format), and the rows that stay move to the front of their pages.

All arithmetic is in the model's dtype, as codecs.py does it: every result is rounded to it.
"""

import triton
import triton.language as tl

from .tools import unit_of


@triton.jit
def rounded(x, kind: tl.constexpr):
    """fp32 values as the model's dtype holds them."""
    return x.to(kind).to(tl.float32)


@triton.jit
def quantised(values, kind: tl.constexpr, AXIS: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr):
    """Codes, scales and minima of values [.., block, ..] fp32, grouped along AXIS; scales and minima keep that axis with extent 1."""
    most: tl.constexpr = 2**BITS - 1
    if ZERO:
        low = tl.min(values, AXIS, keep_dims=True)
        spread = rounded(tl.max(values, AXIS, keep_dims=True) - low, kind)
        scale = rounded(tl.div_rn(spread, tl.full(spread.shape, most, tl.float32)), kind)
    else:
        spread = tl.max(tl.abs(values), AXIS, keep_dims=True)
        scale = rounded(tl.div_rn(spread, tl.full(spread.shape, 2 ** (BITS - 1) - 1, tl.float32)), kind)
    scale = tl.where(scale == 0, 1.0, scale)  # a constant group, or a subnormal spread
    if not ZERO:
        low = rounded(scale * -(2.0 ** (BITS - 1)), kind)
    x = rounded(tl.div_rn(rounded(values - low, kind), tl.broadcast_to(scale, values.shape)), kind)
    x = tl.minimum(tl.maximum(x, 0.0), most)
    return ((x + 12582912.0) - 12582912.0).to(tl.int32), scale, low  # 1.5 * 2^23: adding it rounds halves to even


@triton.jit(do_not_specialize=["moved_ptr", "packed_ptr", "from_row", "table_row"])
def encode_rows(
    from_ptr, words_ptr, scale_ptr, low_ptr, from_table_ptr, table_ptr, moved_ptr, packed_ptr,
    from_layer, words_layer, scale_layer, from_row, table_row,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, FROM_PAGE: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
    BITS: tl.constexpr, ALONG_T: tl.constexpr, BLOCK: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """The first moved[row] rows of each head become rows packed[row] and on of the coded zone. Program (row * H + h, layer, run of ROWS rows).

    from [layer, unit, FROM_PAGE, D]; words int16 [layer, unit, PAGE * BITS / 16, D]; scale, low: [layer, unit, PAGE / BLOCK, D] along tokens,
    [layer, unit, D / BLOCK, PAGE] along channels. ROWS holds whole spans of words and whole blocks; along tokens rows come in whole blocks.
    """
    place, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, h = place // H, place % H
    moved, packed = tl.load(moved_ptr + row), tl.load(packed_ptr + row)
    base = (packed // ROWS + tl.program_id(2)) * ROWS
    if base < packed + moved:
        kind: tl.constexpr = from_ptr.dtype.element_ty
        each: tl.constexpr = 16 // BITS
        span: tl.constexpr = 16 * each
        tile: tl.constexpr = BLOCK if ALONG_T and BLOCK > 16 else 16  # rows that are encoded at once: few of ROWS may be new
        spans: tl.constexpr = max(1, tile // span)
        places: tl.constexpr = min(tile, span) // 16
        c = tl.arange(0, DP)
        inside = (c < D)[None, :]
        unit = unit_of(tl.load(table_ptr + row * table_row + base // PAGE), h, H)
        words = tl.zeros([spans * 16, DP], tl.int32)
        for start in range(tl.maximum(packed, base) // tile * tile, tl.minimum(packed + moved, base + ROWS), tile):
            token = start + tl.arange(0, tile)
            new = (token >= packed) & (token < packed + moved)
            rank = token - packed
            line = unit_of(tl.load(from_table_ptr + row * from_row + rank // FROM_PAGE, new, 0), h, H) * FROM_PAGE + rank % FROM_PAGE
            values = tl.load(from_ptr + layer * from_layer + line[:, None] * D + c[None, :], new[:, None] & inside, 0.0).to(tl.float32)
            if ALONG_T:
                blocks: tl.constexpr = tile // BLOCK
                codes, scale, low = quantised(tl.reshape(values, [blocks, BLOCK, DP]), kind, 1, BITS, ZERO)
                n = tl.arange(0, blocks)
                first = start + n * BLOCK
                at = scale_layer * layer + (unit * (PAGE // BLOCK) + first % PAGE // BLOCK)[:, None] * D + c[None, :]
                due = ((first >= packed) & (first < packed + moved))[:, None] & inside
                scale, low = tl.reshape(scale, [blocks, DP]), tl.reshape(low, [blocks, DP])
            else:
                groups: tl.constexpr = DP // BLOCK
                codes, scale, low = quantised(tl.reshape(values, [tile, groups, BLOCK]), kind, 2, BITS, ZERO)
                n = tl.arange(0, groups)
                at = scale_layer * layer + (unit * (D // BLOCK) + n)[None, :] * PAGE + (token % PAGE)[:, None]
                due = new[:, None] & (n < D // BLOCK)[None, :]
                scale, low = tl.reshape(scale, [tile, groups]), tl.reshape(low, [tile, groups])
            tl.store(scale_ptr + at, scale.to(kind), due)
            if ZERO:
                tl.store(low_ptr + at, low.to(kind), due)
            codes = tl.where(new[:, None], tl.reshape(codes, [tile, DP]), 0)
            shifts = (start % span // 16 + tl.arange(0, places)) * BITS
            found = tl.sum(tl.reshape(codes, [spans, places, 16, DP]) << shifts[None, :, None, None], 1)
            words += tl.reshape(found, [spans * 16, DP])  # disjoint bits
        word = tl.arange(0, spans * 16)
        first = base + word // 16 * span + word % 16  # of a word's rows, which lie 16 apart
        older = tl.minimum(tl.maximum(packed - first + 15, 0) // 16, each)  # rows of the word that were there before
        at = words_ptr + words_layer * layer + (unit * (PAGE // each) + base % PAGE // each + word)[:, None] * D + c[None, :]
        kept = tl.load(at, ((older > 0) & (older < each))[:, None] & inside, 0).to(tl.int32) & ((1 << (older % each * BITS)) - 1)[:, None]
        due = (older < each) & (first + older * 16 < packed + moved)
        tl.store(at, (words | kept).to(tl.int16), due[:, None] & inside)


@triton.jit(do_not_specialize=["moved_ptr", "packed_ptr", "from_row", "table_row"])
def copy_rows(
    from_ptr, to_ptr, from_table_ptr, table_ptr, moved_ptr, packed_ptr, from_layer, to_layer, from_row, table_row,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, FROM_PAGE: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The same where the older zone is raw: to [layer, unit, PAGE, D]."""
    place, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, h = place // H, place % H
    rank, c = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    here = rank < tl.load(moved_ptr + row)
    token = tl.load(packed_ptr + row) + rank
    line = unit_of(tl.load(from_table_ptr + row * from_row + rank // FROM_PAGE, here, 0), h, H) * FROM_PAGE + rank % FROM_PAGE
    target = unit_of(tl.load(table_ptr + row * table_row + token // PAGE, here, 0), h, H) * PAGE + token % PAGE
    inside = here[:, None] & (c < D)[None, :]
    values = tl.load(from_ptr + layer * from_layer + line[:, None] * D + c[None, :], inside, 0.0)
    tl.store(to_ptr + layer * to_layer + target[:, None] * D + c[None, :], values, inside)


@triton.jit(do_not_specialize=["moved_ptr", "held_ptr", "table_row"])
def shift_rows(
    data_ptr, table_ptr, moved_ptr, held_ptr, data_layer, table_row,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Rows moved[row] to held[row] of each head become its first ones; data [layer, unit, PAGE, D]. Program (row * H + h, layer).

    All loads of a tile are done before its stores, and later tiles read what none has written.
    """
    place, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, h = place // H, place % H
    moved, held = tl.load(moved_ptr + row), tl.load(held_ptr + row)
    t, c = tl.arange(0, TILE), tl.arange(0, DP)
    table_ptr += row * table_row
    data_ptr += layer * data_layer
    if moved > 0:
        for start in range(0, held - moved, TILE):
            to = start + t
            here = to < held - moved
            of = to + moved
            read = unit_of(tl.load(table_ptr + of // PAGE, here, 0), h, H) * PAGE + of % PAGE
            write = unit_of(tl.load(table_ptr + to // PAGE, here, 0), h, H) * PAGE + to % PAGE
            inside = here[:, None] & (c < D)[None, :]
            values = tl.load(data_ptr + read[:, None] * D + c[None, :], inside, 0.0)
            tl.debug_barrier()
            tl.store(data_ptr + write[:, None] * D + c[None, :], values, inside)
