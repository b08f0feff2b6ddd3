"""Rows in two zones, the older one coded: encoding, attention and whole decode steps in interpreter mode, in fp32, against the torch path."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from coded import attend, attended, paged, part_pools
from engines import add, engine, ids_of_rows, prompt, with_kernels
from sparsec_runtime.codecs import place_of, quantise
from sparsec_runtime.gpu.graphs import DecodeGraphs
from sparsec_runtime.gpu.kernels.coded import _decode_text, lift_of
from sparsec_runtime.gpu.kernels.encode import encode_rows, shift_rows
from sparsec_runtime.layout import Codec

from sparsec.pipeline import Compilation, load_manager

# rows held, of which K and of which V lie in the older zone: nothing there, one row in the tail, parts apart both ways, a chunk and more
RAGGED = ((5, 0, 0), (33, 32, 32), (70, 64, 40), (70, 32, 61), (300, 288, 290), (1, 0, 0))


def both_parts(codecs, ragged, heads, dim, pages, dtype=torch.float32):
    return [part_pools([(row[0], row[n]) for row in ragged], codec, heads, dim, pages, dtype, seed=n) for n, codec in zip((1, 2), codecs)]


def check_attention(method_params, codecs, ragged, heads, group, dim, pages, **sizes):
    kernels = load_manager(Compilation.load("kivi", params=method_params)).decode_kernels()
    k, v = both_parts(codecs, ragged, heads, dim, pages)
    q = torch.randn(len(ragged), heads * group, dim, generator=torch.Generator().manual_seed(9))
    out = attend(kernels, k, v, [row[0] for row in ragged], q, pages, "cpu", **sizes)
    wanted = torch.stack([attended(q[n], k.rows[n], v.rows[n], dim**-0.5) for n in range(len(ragged))])
    torch.testing.assert_close(out.double(), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("k_bits", "v_bits", "group", "dim"), [(4, 4, 4, 64), (2, 2, 1, 32), (8, 8, 2, 32), (2, 4, 3, 64), (4, 2, 2, 128)]
)
def test_attention_over_coded_and_raw_rows_equals_plain_attention(k_bits, v_bits, group, dim):
    codecs = Codec(k_bits, "t", 32), Codec(v_bits, "c", 32)
    check_attention({"k_bits": k_bits, "v_bits": v_bits, "block": 32}, codecs, RAGGED, 2, group, dim, (128, 16))


def test_many_rows_are_spread_out_anew_for_each_item():
    codecs = Codec(4, "t", 32), Codec(4, "c", 32)
    check_attention({"k_bits": 4, "v_bits": 4, "block": 32}, codecs, RAGGED, 2, 2, 32, (64, 16), EP=32)


def test_blocks_smaller_than_a_tile():
    ragged = ((30, 8, 8), (41, 24, 17), (150, 136, 150))
    check_attention({"k_bits": 2, "v_bits": 2, "block": 8}, (Codec(2, "t", 8), Codec(2, "c", 8)), ragged, 1, 2, 32, (128, 16))


def test_channels_that_are_no_power_of_two():
    check_attention({"k_bits": 4, "v_bits": 4, "block": 16}, (Codec(4, "t", 16), Codec(4, "c", 16)), RAGGED, 1, 4, 80, (64, 16))


@pytest.mark.parametrize("codec", [
    Codec(2, "t", 32), Codec(4, "t", 32), Codec(8, "t", 8), Codec(8, "t", 64), Codec(2, "t", 8), Codec(4, "t", 16, zero=False),
    Codec(2, "c", 16), Codec(4, "c", 32), Codec(8, "c", 8), Codec(2, "c", 8, zero=False),
], ids=str)  # fmt: skip
def test_encoding_gives_the_words_scales_and_minima_of_the_torch_path(codec):
    heads, dim, page, tail_page, layers = 2, 48 if codec.block <= 16 else 64, 128, 16, 2
    step = codec.block if codec.along == "t" else 1
    rows = [(0, 3 * step), (5 * step, 2 * step), (4 * step, 0), (7 * step, step), (128 - step, 2 * step)]  # rows that lie there, rows that come
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(layers * heads, packed + moved, dim, generator=generator) for packed, moved in rows]
    values[0][:, :step] = 1.5  # a constant group
    tails, tail_table = paged([row[:, packed:] for row, (packed, _) in zip(values, rows)], tail_page, generator, float("nan"))
    lines = 1 if codec.along == "c" else codec.block
    counts = [-(-max(1, packed + moved) // page) for packed, moved in rows]
    table = torch.zeros(len(rows), max(counts), dtype=torch.int32)
    order, first = torch.randperm(sum(counts), generator=generator) + 1, 0
    for n, count in enumerate(counts):
        table[n, :count], first = order[first : first + count], first + count
    units = (sum(counts) + 1) * heads
    inner = dim if codec.along == "t" else dim // codec.block
    words = torch.full((layers, units, page * codec.bits // 16, dim), -1, dtype=torch.int16)
    scale, low = (torch.full((layers, units, *((page // lines, inner) if codec.along == "t" else (inner, page))), float("nan")) for _ in range(2))
    wanted = []
    for n, (packed, moved) in enumerate(rows):
        full = values[n].unflatten(0, (layers, heads))
        whole = quantise(full, codec) if full.shape[2] else None
        wanted.append(whole)
        if whole is None:
            continue
        for token in range(packed):  # what lies there already: codes bit by bit, as the torch path leaves them
            unit, slot = table[n, token // page].long() * heads + torch.arange(heads), token % page
            word, shift = place_of(torch.tensor(slot), codec.bits)
            mask = (2**codec.bits - 1) << shift
            words[:, unit, word] = ((words[:, unit, word].int() & ~mask) | (whole.codes[:, :, token] << shift)).to(torch.int16)
    tail_pool = tails.unflatten(0, (-1, layers * heads)).unflatten(1, (layers, heads)).movedim(1, 0).flatten(1, 2).contiguous()
    moved, packed = (torch.tensor([row[n] for row in rows], dtype=torch.int32) for n in (1, 0))
    run = codec.page_multiple
    encode_rows[(len(rows) * heads, layers, 1 + 3 * step // run + 1)](
        tail_pool, words, scale, low, tail_table, table, moved, packed, tail_pool.stride(0), words.stride(0), scale.stride(0), tail_table.stride(0),
        table.stride(0), H=heads, D=dim, DP=1 << (dim - 1).bit_length(), FROM_PAGE=tail_page, PAGE=page, ROWS=run, BITS=codec.bits, ALONG_T=codec.along == "t",
        BLOCK=codec.block, ZERO=codec.zero,
    )  # fmt: skip
    for n, (held, came) in enumerate(rows):
        for token in range(held + came):
            unit, slot = table[n, token // page].long() * heads + torch.arange(heads), token % page
            word, shift = place_of(torch.tensor(slot), codec.bits)
            assert torch.equal((words[:, unit, word].int() >> shift) & (2**codec.bits - 1), wanted[n].codes[:, :, token]), (n, token)
            if token >= held:
                for pool, given in ((scale, wanted[n].scale), *(((low, wanted[n].minimum),) if codec.zero else ())):
                    assert torch.equal(pool[:, unit, slot // lines] if codec.along == "t" else pool[:, unit, :, slot], given[:, :, token // lines])


def test_rows_behind_those_that_went_move_to_the_front():
    heads, dim, page = 2, 48, 16
    rows = [(40, 3), (17, 17), (50, 0), (33, 32)]
    generator = torch.Generator().manual_seed(4)
    values = [torch.randn(heads, held, dim, generator=generator) for held, _ in rows]
    pool, table = paged(values, page, generator, float("nan"))
    held, moved = (torch.tensor([row[n] for row in rows], dtype=torch.int32) for n in (0, 1))
    shift_rows[(len(rows) * heads, 1)](pool, table, moved, held, pool.numel(), table.stride(0), H=heads, D=dim, DP=64, PAGE=page, TILE=16)
    for n, (count, gone) in enumerate(rows):
        for token in range(count - gone):
            unit = table[n, token // page].long() * heads + torch.arange(heads)
            assert torch.equal(pool[unit, token % page], values[n][:, token + gone])


@pytest.mark.parametrize("half", ["bf16", "f16"])
@pytest.mark.parametrize("bits", [2, 4])
def test_the_instructions_that_decode_two_words_give_each_code(bits, half):
    """What the interpreter cannot run, by its constants: a code's bits in the mantissa of a power of two are the code plus that power."""
    kind = torch.bfloat16 if half == "bf16" else torch.float16
    words = torch.randint(0, 2**16, (64,), generator=torch.Generator().manual_seed(bits)).tolist()

    def number(pattern: int) -> float:
        return torch.tensor([pattern & 0xFFFF], dtype=torch.int32).to(torch.uint16).view(kind).item()

    for j in range(16 // bits):
        text = _decode_text.fn(bits, j, half, "")
        side, by = re.search(r"sh([rl])\.\w+ a, \$1, (\d+)", text).groups()
        mask, base = (int(found, 16) & 0xFFFF for found in re.search(r"lop3\.b32 a, a, 0x(\w+), 0x(\w+), 0xEA", text).groups())
        for word in words:
            # The shift moves both halves of a pair at once: bits that cross from the other half must be masked away, so any may stand there.
            pairs = [(above << 16 | word, 0) for above in (0, 0xFFFF)] + [(word << 16 | below, 16) for below in (0, 0xFFFF)]
            patterns = {((pair >> int(by) if side == "r" else pair << int(by)) >> at) & mask | base for pair, at in pairs}
            assert [number(pattern) - lift_of.fn(bits, False) for pattern in patterns] == [(word >> (j * bits)) & (2**bits - 1)], (bits, j, half)


# params, prompt lengths, new tokens: keys go in bursts and values one by one, or both in blocks
WHOLE = {
    "reference, 2 bit": ({"block": 8, "residual": 8}, (5, 12), 6),
    "reference, 4 and 8 bit": ({"block": 8, "residual": 16, "k_bits": 4, "v_bits": 8}, (30,), 4),
    "blocks, 4 bit": ({"block": 8, "residual": 8, "flush": "blocks", "k_bits": 4, "v_bits": 4}, (15, 22), 9),
}


def ids_with(params, lengths, new, kernels, method="kivi"):
    made = engine(method, params=params)
    made = with_kernels(made) if kernels else made
    return ids_of_rows(made, lengths, new), made.graphs.bulk_steps if kernels else 0


@pytest.mark.parametrize("case", WHOLE)
def test_decode_over_two_zones_gives_the_ids_of_the_eager_path(case):
    found, bulk = ids_with(*WHOLE[case], kernels=True)
    assert found == ids_with(*WHOLE[case], kernels=False)[0]
    assert bulk > 0, "rows moved between two graphs"


def test_a_method_whose_rows_move_whole_and_whose_codes_have_no_zero_point():
    spec = str(Path(__file__).parents[1] / "codegen/specs/pair_of_zones.sparse")
    found, bulk = ids_with({"whole": 10}, (9, 14), 4, True, spec)
    assert found == ids_with({"whole": 10}, (9, 14), 4, False, spec)[0] and bulk > 0


def test_graphs_have_room_for_all_rows_that_coded_pools_hold():
    made = engine("kivi", params={"block": 16, "residual": 32}, memory_tokens=1024, chunk=16)
    graphs = DecodeGraphs(made.model, made.manager, pool_tokens=1024)
    rows = made.manager.storage.row_stream
    assert graphs.pool_tokens == rows.pool.total * rows.geometry.page_size > 1024, "two bits hold more rows than the raw ones of the same memory"
    assert graphs.tokens == min(graphs.pool_tokens, made.model.shape.max_positions)


def test_pools_hold_what_the_eager_path_stores():
    """Codes, scales and tail rows after several flushes, zone by zone."""
    pools = []
    for kernels in (True, False):
        made = engine("kivi", params={"block": 8, "residual": 8, "k_bits": 4})
        if kernels:
            made.graphs = DecodeGraphs(made.model, made.manager, pool_tokens=4096, tokens=128)
        add(made, prompt(11, seed=5), 30, name="row")
        for _ in range(12):
            made.step()
        [sequence] = made.manager._sequences.values()
        at = made.manager.storage.addresses([sequence])
        pools.append([
            store.read(at[store.stream.name], layer, int(sequence.zone_rows[key][layer, 0]))[0]
            for key, store in made.manager.storage.stores.items() for layer in range(made.model.shape.layers)
        ])  # fmt: skip
    for ours, wanted in zip(*pools):
        assert ours.shape == wanted.shape and ours.shape[1] > 0
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
