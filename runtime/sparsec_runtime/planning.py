"""Host arithmetic of pages: what a step needs before it begins, what counts hold after it, what a request needs at its peak. No tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .hooks import END_OF_PROMPT, FINISH_STEP
from .layout import PARTS, Counts, Part
from .params import Values
from .sequence import Sequence
from .step import StepBatch
from .storage import Storage

if TYPE_CHECKING:
    from .cache import CacheManager

ZoneRows = Mapping[tuple[str, Part], np.ndarray]


def pages_planned(manager: CacheManager, sequence: Sequence, batch: StepBatch, row: int) -> dict[str, np.ndarray]:
    """Pages [table_row] per stream that a step needs: for the new rows, and for the rows that hooks will move in."""
    storage = manager.storage
    streams = {storage.row_stream.name: storage.row_stream.pages_wanted(sequence.rows + batch.tokens)}
    if len(storage.zone_names) == 1:
        return streams
    after = zones_after(manager, sequence, batch, row)
    for (zone, part), held in sequence.zone_rows.items():
        now = held + (batch.tokens if zone == storage.newest_zone else 0)
        stream = storage.stream_of(zone, part)
        streams[stream.name] = np.maximum(streams.get(stream.name, 0), stream.pages_wanted(np.maximum(now, after[zone, part])))
    return streams


def pages_held(storage: Storage, rows: np.ndarray, zones: ZoneRows) -> dict[str, np.ndarray]:
    """Pages [table_row] per stream that hold rows [layer, kv_head]."""
    held = {storage.row_stream.name: storage.row_stream.pages_wanted(rows)}
    for (zone, part), counts in zones.items():
        stream = storage.stream_of(zone, part)
        held[stream.name] = np.maximum(held.get(stream.name, 0), stream.pages_wanted(counts))
    return held


def counts_after_hooks(manager: CacheManager, counts: Counts, phase: str, layer: int, params: Values) -> Counts:
    """A layer's counts after the hooks that end a step."""
    hooks = (END_OF_PROMPT, FINISH_STEP) if phase == "prefill" and counts.prompt_done else (FINISH_STEP,)
    for hook in hooks:
        if hook in manager.hooks_bound():
            counts = manager.rows_after(hook, phase, counts, layer, params, manager.model_facts)
        if hook == END_OF_PROMPT:
            counts = replace(counts, prompt_rows=counts.length)
    return counts


def zones_after(manager: CacheManager, sequence: Sequence, batch: StepBatch, row: int) -> ZoneRows:
    """Rows [layer, kv_head] in each zone after the step's hooks; one evaluation where layers or heads hold equal counts."""
    storage, scope = manager.storage, manager.LAYOUT.scope
    after = {key: np.zeros_like(held) for key, held in sequence.zone_rows.items()}
    for layer in range(1 if scope == "shared" else storage.layers):
        for head in range(storage.heads if scope == "head" else 1):
            where = (slice(None) if scope == "shared" else layer, head if scope == "head" else slice(None))
            counts = sequence.counts((layer, head), batch.tokens, storage.newest_zone, batch.steps[row], batch.prompt_done)
            counts = counts_after_hooks(manager, counts, batch.phase, layer, sequence.params)
            for key, held in after.items():
                held[where] = counts.rows[key]
    return after


def page_need(manager: CacheManager, prompt_len: int, new_tokens: int, chunk: int, params: Values) -> int:
    """Peak pages of a request, in the unit of CacheManager.pages()."""
    peak, streams = peak_pages(manager, prompt_len, new_tokens, chunk, params), manager.storage.streams
    total = max(stream.pool.total for stream in streams.values())
    return max(-(-pages * total // max(1, streams[name].pool.total)) for name, pages in peak.items())


def peak_pages(
    manager: CacheManager, prompt_len: int, new_tokens: int, chunk: int, params: Values, phases: tuple[str, ...] = ("prefill", "decode")
) -> dict[str, int]:
    """Peak pages of a request in each stream, over all its table rows, in the steps of these phases."""
    storage = manager.storage
    layers = range(1 if manager.LAYOUT.scope == "shared" else storage.layers)
    empty = Counts(0, {(zone, part): 0 for zone in storage.zone_names for part in PARTS}, 0, 0, False)
    counts = {layer: empty for layer in layers}
    peak = {name: 0 for name in storage.streams}
    done = 0
    while done < prompt_len + new_tokens - 1:  # the last new token is sampled and never fed
        phase = "prefill" if done < prompt_len else "decode"
        new = min(chunk, prompt_len - done) if phase == "prefill" else 1
        done += new
        needed = dict.fromkeys(peak, 0)
        for layer in layers:
            before = _with_new_rows(counts[layer], storage.newest_zone, new, done >= prompt_len, max(0, done - prompt_len - 1))
            after = counts_after_hooks(manager, before, phase, layer, params)
            _add_pages(storage, needed, before, after)
            counts[layer] = after
        if phase in phases:
            peak = {name: max(pages, needed[name]) for name, pages in peak.items()}
    return peak


def _with_new_rows(counts: Counts, newest: str, new: int, prompt_done: bool, steps: int) -> Counts:
    rows = {(zone, part): held + (new if zone == newest else 0) for (zone, part), held in counts.rows.items()}
    return Counts(counts.length + new, rows, counts.prompt_rows, steps, prompt_done)


def _add_pages(storage: Storage, needed: dict[str, int], before: Counts, after: Counts) -> None:
    """One layer's pages of a step, allocated before its hooks: the rows before them, and what they move in."""
    wanted = {storage.row_stream.name: before.length}
    if len(storage.zone_names) > 1:
        for key in before.rows:
            name = storage.stream_of(*key).name
            wanted[name] = max(wanted.get(name, 0), before.rows[key], after.rows[key])
    for name, rows in wanted.items():
        needed[name] += _pages(storage, name, rows)


def _pages(storage: Storage, name: str, rows: int) -> int:
    size = storage.streams[name].geometry.page_size
    if storage.ragged_heads:
        # rows is the average over heads: full pages of all rows, and one part-filled page per head.
        return rows * storage.heads // size + storage.heads
    return -(-rows // size)
