"""Counter-based random numbers: each is a function of its key and counter alone, so any row's draw can be computed without the others."""

from __future__ import annotations

import torch
from torch import Tensor


def uniform(seeds: Tensor, steps: Tensor) -> Tensor:
    """A number in [0, 1) for each (seed, step) [row] int64, fp64 with 53 random bits: Philox with key = seed and counter = (step, 0)."""
    zero = torch.zeros_like(steps)
    words = philox((_low(steps), _high(steps), zero, zero), (_low(seeds), _high(seeds)))
    bits = ((words[1] << 21) | (words[0] >> 11)).double()  # 32 + 21 bits
    return bits * 2.0**-53


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Philox4x32-10 (Salmon et al. 2011): four random words from a counter of four and a key of two, 32-bit words in int64 tensors."""
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        high_a, low_a = _product(a, 0xD2511F53)
        high_c, low_c = _product(c, 0xCD9E8D57)
        a, b, c, d = high_c ^ b ^ k0, low_c, high_a ^ d ^ k1, low_a
        k0, k1 = _low(k0 + 0x9E3779B9), _low(k1 + 0xBB67AE85)
    return a, b, c, d


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low words of a 32 x 32 bit product. int64 wraps, but keeps all 64 bits, and the mask drops the shift's sign bits."""
    product = word * factor
    return _high(product), _low(product)


def _low(x: Tensor) -> Tensor:
    return x & 0xFFFFFFFF


def _high(x: Tensor) -> Tensor:
    return (x >> 32) & 0xFFFFFFFF
