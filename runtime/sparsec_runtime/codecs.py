"""The int group quantiser: values <-> codes with scales and minima, codes <-> int16 words. Knows no pages.

16 words of each channel hold a span of 16 * 16 / bits slots: word n holds slots n, n + 16, n + 32, ..., the lowest slot in the lowest bits. So the codes at one place
of 16 words are 16 consecutive tokens, which share a block's scale: a tile of an attention kernel. All arithmetic is in the values' own dtype, as the references do
it; a constant group has scale 1 and comes back exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import WORD_BITS, WORDS_OF_A_SPAN, Codec, span_of


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """codes [..., token, channel] of any int type; scale and minimum [..., token / block, channel] (along t) or [..., token, channel / block] (along c)."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None


def quantise(values: Tensor, codec: Codec) -> Quantised:
    """values [..., token, channel] -> codes; the grouped axis is a multiple of the block."""
    groups, axis = _grouped(values, codec)
    top = 2**codec.bits - 1
    if codec.zero:
        minimum = groups.amin(axis, keepdim=True)
        spread = groups.amax(axis, keepdim=True) - minimum
        scale = torch.where(spread == 0, torch.ones_like(spread), spread / top)
    else:
        half = 2 ** (codec.bits - 1)
        largest = groups.abs().amax(axis, keepdim=True)
        scale = torch.where(largest == 0, torch.ones_like(largest), largest / (half - 1))
        minimum = -half * scale
    # A subnormal spread can underflow to scale 0: the guard keeps codes finite.
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = ((groups - minimum) / scale).clamp(0, top).round().to(torch.int32).reshape(values.shape)
    return Quantised(codes, scale.squeeze(axis), minimum.squeeze(axis) if codec.zero else None)


def dequantise(stored: Quantised, codec: Codec) -> Tensor:
    """Values [..., token, channel] in the dtype of the scales."""
    groups, axis = _grouped(stored.codes, codec)
    scale = stored.scale.unsqueeze(axis)
    minimum = -(2 ** (codec.bits - 1)) * scale if stored.minimum is None else stored.minimum.unsqueeze(axis)
    values = groups.to(scale.dtype)
    return values.mul_(scale).add_(minimum).reshape(stored.codes.shape)


def _grouped(x: Tensor, codec: Codec) -> tuple[Tensor, int]:
    """x with its grouped axis split in (groups, block), and the index of the block axis."""
    axis = -2 if codec.along == "t" else -1
    assert x.shape[axis] % codec.block == 0, f"{x.shape[axis]} values along {codec.along} are no multiple of the block {codec.block}"
    if codec.along == "t":
        return x.unflatten(-2, (-1, codec.block)), -2
    return x.unflatten(-1, (-1, codec.block)), -1


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., token, channel] int32, whole spans of tokens -> words [..., token * bits / 16, channel] int16 (two's complement)."""
    each = WORD_BITS // bits
    assert codes.shape[-2] % span_of(bits) == 0, f"{codes.shape[-2]} codes do not fill spans of {span_of(bits)}"
    # The codes of one word occupy disjoint bits: a wrapping sum is their union.
    places = codes.unflatten(-2, (-1, each, WORDS_OF_A_SPAN)) << _shifts(bits, codes)
    return places.sum(-3, dtype=torch.int16).flatten(-3, -2)


def unpack(words: Tensor, bits: int) -> Tensor:
    """Words [..., word, channel] int16 -> codes [..., word * 16 / bits, channel] int16."""
    codes = words.unflatten(-2, (-1, 1, WORDS_OF_A_SPAN)) >> _shifts(bits, words)
    return codes.bitwise_and_(2**bits - 1).flatten(-4, -2)


def _shifts(bits: int, like: Tensor) -> Tensor:
    """[place, 1, 1] in the type of `like`."""
    return torch.arange(0, WORD_BITS, bits, device=like.device, dtype=like.dtype)[:, None, None]


def place_of(slots: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Word number and shift of each slot."""
    span = span_of(bits)
    return slots // span * WORDS_OF_A_SPAN + slots % WORDS_OF_A_SPAN, slots % span // WORDS_OF_A_SPAN * bits
