"""The group quantiser: the card's worked example, exact constants, error bounds, packing."""

import pytest
import torch
from sparsec_runtime.codecs import Quantised, dequantise, pack, place_of, quantise, unpack
from sparsec_runtime.layout import Codec


def test_codes_along_tokens_are_those_of_the_worked_example():
    keys = torch.tensor([[0.0, -1.0], [1.0, 0.5], [2.0, 2.0], [6.0, 5.0]])
    codec = Codec(2, "t", 4)
    stored = quantise(keys, codec)
    assert stored.codes.T.tolist() == [[0, 0, 1, 3], [0, 1, 2, 3]]
    assert stored.scale.tolist() == [[2.0, 2.0]] and stored.minimum.tolist() == [[0.0, -1.0]]
    assert dequantise(stored, codec).T.tolist() == [[0.0, 0.0, 2.0, 6.0], [-1.0, 1.0, 3.0, 5.0]]


def test_codes_along_channels_are_those_of_the_worked_example():
    row = torch.tensor([[-1.5, -1, -0.5, 0, 0.5, 1, 1.5, 3, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]])
    stored = quantise(row, Codec(4, "c", 8))
    assert stored.codes.tolist() == [[0, 2, 3, 5, 7, 8, 10, 15, 0, 2, 4, 6, 9, 11, 13, 15]]
    assert torch.allclose(stored.scale, torch.tensor([[0.3, 0.0466667]])) and torch.allclose(stored.minimum, torch.tensor([[-1.5, 0.1]]))


def test_words_hold_slots_that_lie_16_apart_the_lowest_in_the_lowest_bits():
    slots = torch.arange(64, dtype=torch.int32)
    words = pack((slots // 16 * 3)[:, None], 4)  # slot n + 16 j has code 3 j
    assert words.dtype == torch.int16 and [word & 0xFFFF for word in words.flatten().tolist()] == [0x9630] * 16
    ramp = pack((torch.arange(128, dtype=torch.int32) // 16 % 4)[:, None], 2)
    assert [word & 0xFFFF for word in ramp.flatten().tolist()] == [0b1110010011100100] * 16
    assert pack((slots == 18)[:, None] * 5, 4).flatten().tolist() == [0, 0, 5 << 4] + [0] * 13


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_place_of_a_slot_is_where_packing_puts_it(bits):
    span = 256 // bits
    for slot in (0, 1, 15, 16, span - 1, span, 2 * span - 17):
        word, shift = place_of(torch.tensor(slot), bits)
        packed = pack((torch.arange(2 * span, dtype=torch.int32) == slot)[:, None] * 3, bits).flatten().tolist()
        assert [n for n, value in enumerate(packed) if value] == [word] and packed[word] & 0xFFFF == 3 << shift


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_unpacking_gives_the_codes_back(bits):
    codes = torch.randint(0, 2**bits, (2, 3, 256, 5), dtype=torch.int32, generator=torch.Generator().manual_seed(bits))
    assert torch.equal(unpack(pack(codes, bits), bits), codes)


@pytest.mark.parametrize("along", ["t", "c"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_error_is_at_most_half_a_step(bits, along):
    x = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(bits))
    codec = Codec(bits, along, 32)
    stored = quantise(x, codec)
    step = stored.scale.repeat_interleave(32, dim=-2 if along == "t" else -1)
    assert ((dequantise(stored, codec) - x).abs() <= step / 2 + 1e-5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_constant_group_comes_back_exactly(dtype):
    x = torch.full((32, 32), 0.3, dtype=dtype)
    for codec in (Codec(2, "t", 32), Codec(4, "c", 32)):
        assert torch.equal(dequantise(quantise(x, codec), codec), x)


def test_scales_are_in_the_dtype_of_the_values():
    stored = quantise(torch.randn(32, 32).half(), Codec(2, "t", 32))
    assert stored.scale.dtype == stored.minimum.dtype == torch.float16


def test_the_relative_error_of_gaussian_data_is_the_published_one():
    x = torch.randn(1024, 128, generator=torch.Generator().manual_seed(0))
    for bits, block, expected in ((2, 32, 0.3932), (2, 128, 0.5016), (4, 32, 0.0783), (8, 32, 0.0046)):
        codec = Codec(bits, "t", block)
        error = (dequantise(quantise(x, codec), codec) - x).norm() / x.norm()
        assert abs(error - expected) < 0.02 * expected


def test_without_a_minimum_the_codes_are_symmetric():
    codec = Codec(4, "t", 4, zero=False)
    x = torch.tensor([[-7.0], [0.0], [3.0], [7.0]])
    stored = quantise(x, codec)
    assert stored.minimum is None and torch.equal(dequantise(stored, codec), x)
    assert isinstance(stored, Quantised)
