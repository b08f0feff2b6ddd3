"""Pools for a batch of residents: pages by the host's own arithmetic, no more than the batch needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sparsec_runtime.cache import CacheManager
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.params import Value
from sparsec_runtime.planning import peak_pages
from sparsec_runtime.tables import table_rows

from sparsec.bench.workload import Workload

SLACK_PAGES = 2  # of each request and table row, beyond its rows


class DoesNotFit(Exception):
    """The device's memory does not hold what was asked for; the message says how much it is."""


def probe_of(method: type[CacheManager], model: LoadedModel) -> CacheManager:
    """A manager without memory, for arithmetic."""
    return method(model.shape, model.rope, model.dtype, "meta", pool_tokens=1, max_requests=1)


def pages_of_residents(
    probe: CacheManager, params: Mapping[str, Value], work: Workload, new: int, contexts: tuple[int, ...] | None = None
) -> dict[str, int]:
    """Pages of each stream that the batch holds at most: every resident in `new` decode steps, and one of them at its prompt's peak where prompts are computed.

    contexts: prompt tokens by row (None: work.context, all of them).
    """
    rows = Counter(contexts or (work.context,) * work.batch)
    each = {context: resident_pages(probe, params, context, new) for context in rows}
    pages = {name: sum(count * each[context][name] for context, count in rows.items()) for name in probe.storage.streams}
    if work.fill == "prompt":
        more = prompt_pages(probe, params, work, each[max(rows)])
        pages = {name: count + more[name] for name, count in pages.items()}
    return pages


def prompt_pages(probe: CacheManager, params: Mapping[str, Value], work: Workload, each: Mapping[str, int]) -> dict[str, int]:
    """Pages of each stream that a request holds at its prompt's peak beyond those that it has for decode."""
    peak = peak_pages(probe, work.context, 1, work.chunk, params)
    return {name: max(0, peak[name] - count) for name, count in each.items()}


def resident_pages(probe: CacheManager, params: Mapping[str, Value], context: int, new: int) -> dict[str, int]:
    """Pages of each stream that one request holds at most in its decode steps, over all table rows."""
    storage = probe.storage
    slack = SLACK_PAGES * table_rows(storage.layout.scope, storage.layers, storage.heads)
    return {name: count + slack for name, count in peak_pages(probe, context, new, context, params, phases=("decode",)).items()}


def tokens_of(probe: CacheManager, pages: Mapping[str, int]) -> dict[str, int]:
    """Rows per layer and head that so many pages of each stream hold: what a manager is made with."""
    storage = probe.storage
    lines = table_rows(storage.layout.scope, storage.layers, storage.heads)
    return {name: -(-count // lines) * storage.streams[name].geometry.page_size for name, count in pages.items()}


def bytes_of(probe: CacheManager, pages: Mapping[str, int]) -> int:
    """Bytes of so many pages of each stream, states and summaries included."""
    streams = probe.storage.streams
    return sum(count * streams[name].page_bytes([*streams[name].payload, *streams[name].attached]) for name, count in pages.items())


def manager_with(method: type[CacheManager], model: LoadedModel, tokens: Mapping[str, int], batch: int, chunk: int) -> CacheManager:
    return method(model.shape, model.rope, model.dtype, model.device, pool_tokens=tokens, max_requests=batch, chunk=chunk)
