"""How one amount of memory is shared out among the streams of a method: none holds rows that no request would bring it."""

from __future__ import annotations

from fractions import Fraction

import torch

from .cache import CacheManager
from .models.loading import LoadedModel
from .options import EngineOptions
from .planning import peak_pages
from .tables import table_rows


def pool_tokens(method: type[CacheManager], model: LoadedModel, options: EngineOptions) -> dict[str, int]:
    """Rows per layer and head of each stream, so that K and V of all of them take the bytes that dense attention needs for memory_tokens.

    The streams stand in the proportion in which one long request at default params fills them at its peaks.
    """
    probe = method(model.shape, model.rope, model.dtype, "meta", pool_tokens=1, max_requests=1, chunk=options.chunk)
    storage, facts = probe.storage, probe.model_facts
    itemsize = torch.empty((), dtype=model.dtype).element_size()
    memory = options.memory_tokens * 2 * int(facts["n_layers"] * facts["kv_heads"] * facts["head_dim"]) * itemsize
    # Twice as long as dense attention could hold: with several streams some store codes, and that is what they are for.
    longest = options.memory_tokens if len(storage.streams) == 1 else min(2 * options.memory_tokens, int(facts["context"]))
    pages = peak_pages(probe, longest, 1, options.chunk, probe.resolve_params({}, prompt_tokens=longest))
    tokens = {name: _rows(probe, name, count) for name, count in pages.items()}
    filled = sum(rows * _row_bytes(probe, name) for name, rows in tokens.items())
    shares = {name: rows * memory / filled for name, rows in tokens.items()}
    return {name: int(rows) for name, rows in shares.items()} if len(shares) == 1 else _in_pages(probe, shares, memory)


def _in_pages(probe: CacheManager, shares: dict[str, Fraction], memory: int) -> dict[str, int]:
    """Shares in whole pages that stay within the memory: rounded down, then a page more for the shortest as long as one fits."""
    sizes = {name: probe.storage.streams[name].geometry.page_size for name in shares}
    costs = {name: size * _row_bytes(probe, name) for name, size in sizes.items()}
    pages = {name: max(1, int(rows / sizes[name])) for name, rows in shares.items()}
    while True:
        left = memory - sum(count * costs[name] for name, count in pages.items())
        short = [name for name, rows in shares.items() if pages[name] * sizes[name] < rows and costs[name] <= left]
        if not short:
            return {name: count * sizes[name] for name, count in pages.items()}
        pages[min(short, key=lambda name: pages[name] * sizes[name] / shares[name])] += 1


def _rows(probe: CacheManager, name: str, pages: int) -> Fraction:
    """Rows per layer and head that pages over all table rows hold."""
    storage = probe.storage
    return Fraction(pages * storage.streams[name].geometry.page_size, table_rows(storage.layout.scope, storage.layers, storage.heads))


def _row_bytes(probe: CacheManager, name: str) -> Fraction:
    """Bytes of K and V of one row in all layers and heads."""
    storage, stream = probe.storage, probe.storage.streams[name]
    copies = table_rows(storage.layout.scope, storage.layers, storage.heads)
    return Fraction(stream.page_bytes(stream.payload) * copies, stream.geometry.page_size)
