"""The pages that a request needs at its peak, by running the host arithmetic of its counts: no tensors, no pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .layout import PARTS, Counts
from .params import Values
from .storage import Storage

if TYPE_CHECKING:
    from .cache import CacheManager


def page_need(manager: CacheManager, prompt_len: int, new_tokens: int, chunk: int, params: Values) -> int:
    """Peak pages of a request, in the unit of CacheManager.pages()."""
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
            after = manager.counts_after_hooks(before, phase, layer, params)
            _add_pages(storage, needed, before, after)
            counts[layer] = after
        peak = {name: max(pages, needed[name]) for name, pages in peak.items()}
    total = max(stream.pool.total for stream in storage.streams.values())
    return max(-(-pages * total // storage.streams[name].pool.total) for name, pages in peak.items())


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
