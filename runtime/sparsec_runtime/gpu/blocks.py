"""Extents of blocks: Triton's ranges are powers of two, and a tensor core multiplies tiles of at least 16 by 16."""

from __future__ import annotations


def pow2(n: int) -> int:
    """The least power of two that is at least n; 1 for 0."""
    return 1 << max(0, n - 1).bit_length()


def tile_of(n: int) -> int:
    """The same for an axis of a product."""
    return max(16, pow2(n))


def aligned(n: int) -> int:
    """n elements so many that lines of them begin where Triton takes 16 bytes at once."""
    return -(-n // 16) * 16
