"""How the attention of a prompt chunk is cut, so that few shapes reach a library that builds a plan per shape, and why it is not cut or not done here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..hooks import bound_hooks
from .blocks import pow2

if TYPE_CHECKING:
    from ..cache import CacheManager

LEAST_SQUARE = 256  # queries; shorter chunks are one kernel of ours
PREFIX_SHAPES = 6
WIDEST_HEAD = 128  # channels


@dataclass(frozen=True, slots=True)
class Cuts:
    """chunk: queries of a full chunk; tokens: rows that a layer can hold, at most; shorter: queries of the full chunks far into a prompt, descending.

    A chunk's own rows are a causal square, padded to one of `squares`. Rows before them are seen by every query: pieces of `prefixes` rows and a rest.
    The rest is less than a chunk as long as nothing was evicted, and 0 where all chunks before were of that size.
    """

    chunk: int
    tokens: int
    shorter: tuple[int, ...] = ()

    @property
    def squares(self) -> tuple[int, ...]:
        """Powers of two, up to the first that holds a chunk."""
        top = pow2(self.chunk)
        return tuple(LEAST_SQUARE << n for n in range((top // LEAST_SQUARE).bit_length()))

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Powers of two times the chunk, ascending."""
        sizes = (self.chunk << n for n in range(PREFIX_SHAPES))
        return tuple(size for size in sizes if size + self.chunk <= self.tokens) if self.squares else ()

    def square_of(self, queries: int) -> int | None:
        """The square that a chunk's own rows are padded to; None: not worth a plan, or longer than a chunk."""
        if 2 * queries <= LEAST_SQUARE:
            return None
        return next((size for size in self.squares if size >= queries), None)

    def padded(self, queries: int) -> int | None:
        """Queries of the full chunk that a chunk is padded to where it attends to a prefix; None: longer than any, or that would double the work."""
        size = min((size for size in (self.chunk, *self.shorter) if size >= queries), default=None)
        return None if size is None or queries <= size // 2 else size

    def pieces_of(self, rows: int, queries: int) -> tuple[int, ...]:
        """Sizes of the pieces that hold the first of `rows` rows; what is left is the rest."""
        if self.padded(queries) is None:
            return ()
        pieces: list[int] = []
        for size in reversed(self.prefixes):
            count = rows // size
            pieces += [size] * count
            rows -= size * count
        return tuple(pieces)


def reasons_against_cudnn(head_dim: int, dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
    """Empty: cuDNN attends the buckets of a plain chunk. Otherwise the Triton kernel attends all of it."""
    reasons = []
    if device.type != "cuda":
        reasons.append(f"the model lies on {device.type}")
    elif torch.cuda.get_device_capability(device)[0] < 9 or not torch.backends.cudnn.is_available():
        reasons.append("cuDNN attention was measured on devices of compute capability 9 and newer, and this is none")
    return (*reasons, *shape_reasons(head_dim, dtype))


def shape_reasons(head_dim: int, dtype: torch.dtype) -> tuple[str, ...]:
    """Those of a model, on any device."""
    reasons = []
    if dtype not in (torch.bfloat16, torch.float16):
        reasons.append(f"cuDNN attention computes in 16 bit; the model's dtype is {str(dtype).removeprefix('torch.')}")
    if head_dim % 8 or head_dim > WIDEST_HEAD:
        reasons.append(f"heads of {head_dim} channels: cuDNN takes multiples of 8 up to {WIDEST_HEAD}")
    return tuple(reasons)


def reasons_against_plain_prefill(method: type[CacheManager]) -> tuple[str, ...]:
    """Empty: every chunk of a prompt sees all rows before it. Otherwise some chunks are masked, which runs in torch, in blocks of queries."""
    reasons = []
    bound = bound_hooks(method)
    if "build_prefill_selection" in bound:
        reasons.append("build_prefill_selection chooses the rows that a chunk sees")
    if method.LAYOUT.scope == "head" and method.LAYOUT.evicts and "finish_step" in bound:
        reasons.append("heads may hold different counts of rows after a chunk")
    return tuple(reasons)
