"""What an engine runs on its device besides torch, without importing Triton where it does not: decode in graphs, prompts through kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from .cuts import Cuts, reasons_against_cudnn

if TYPE_CHECKING:
    from ..cache import CacheManager, Shape
    from ..models.loading import LoadedModel
    from ..options import EngineOptions
    from ..resident import Resident
    from ..rope import Rope
    from ..step import Step
    from ..storage import Storage
    from ..writing import Write
    from .graphs import DecodeGraphs
    from .prefill import ChunkAttention

    Settle = Callable[[Storage, Step, Sequence[Resident]], bool]


def chunk_attention(shape: Shape, dtype: torch.dtype, device: torch.device, chunks: tuple[int, ...], tokens: int) -> ChunkAttention | None:
    """Attention of prompt chunks where only the future is hidden; None: torch attends them as it does all others.

    chunks: their sizes, the largest first; tokens: rows of the pools.
    """
    if device.type != "cuda":
        return None
    from .prefill import ChunkAttention

    served = not reasons_against_cudnn(shape.head_dim, dtype, device)
    cuts = Cuts(chunks[0], min(tokens, shape.max_positions), chunks[1:]) if served else None
    return ChunkAttention(shape.q_heads, shape.kv_heads, shape.head_dim, dtype, device, cuts)


def chunk_writing(method: type[CacheManager], rope: Rope, device: torch.device) -> Write | None:
    """What turns and stores the rows of prompt chunks in one launch a layer; None: torch does."""
    if device.type != "cuda" or rope.style != "half-split":
        return None
    from .chunk import write_chunk_rows
    from .eligible import reasons_against_chunk_rows

    return None if reasons_against_chunk_rows(method) else write_chunk_rows


def settling(method: type[CacheManager], device: torch.device) -> Settle | None:
    """What makes decisions about stored rows real in steps that run in torch, prompts above all; None: torch does."""
    if device.type != "cuda":
        return None
    from .eligible import reasons_against_graph
    from .settle import settle_by_kernels

    moves = None if method.LAYOUT.scope != "shared" or reasons_against_graph(method) else method.DECODE.moves
    return partial(settle_by_kernels, moves)


def decode_graphs(model: LoadedModel, manager: CacheManager, options: EngineOptions) -> tuple[DecodeGraphs | None, str]:
    """The graphs, or None and the reason. Raises ValueError where torch would round what the model multiplies."""
    if model.device.type != "cuda":
        return None, f"the model lies on {model.device.type}"
    _refuse_rounded_products(model.dtype)
    if not options.graphs:
        return None, "the engine's options say graphs=False"
    from .graphs import BUCKETS, CannotCapture, DecodeGraphs

    if options.max_running > BUCKETS[-1]:
        return None, f"max_running = {options.max_running}: graphs are captured for {BUCKETS[-1]} rows at most"
    try:
        graphs = DecodeGraphs(model, manager, options.memory_tokens, check_every=1 if options.debug else 1000)
    except CannotCapture as reason:
        return None, str(reason)
    if options.capture_at_start:
        graphs.warm_up(options.max_running)
    return graphs, ""


def _refuse_rounded_products(dtype: torch.dtype) -> None:
    """Kernels multiply fp32 as it is. Where the process has torch round it to tf32, half of a layer would; that setting is its owner's to change."""
    if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32":
        raise ValueError(
            "torch rounds products of this float32 model to tf32 (torch.backends.cuda.matmul.fp32_precision, or allow_tf32): "
            "call torch.set_float32_matmul_precision('highest') first, or load the model in bfloat16"
        )
