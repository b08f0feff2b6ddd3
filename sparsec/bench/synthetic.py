"""Requests as they are right after a prompt, without a prefill: random K, V, positions and states at the lengths that the host's counts give."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from sparsec_runtime.cache import CacheManager
from sparsec_runtime.layout import PARTS, Counts
from sparsec_runtime.params import Value
from sparsec_runtime.planning import counts_after_hooks, pages_held
from sparsec_runtime.resident import Resident
from sparsec_runtime.sequence import Sequence
from sparsec_runtime.states import dtype_of
from sparsec_runtime.step import Step, StepBatch
from sparsec_runtime.summaries import refresh
from sparsec_runtime.zones import RawStore


@torch.no_grad()
def fill_pools(manager: CacheManager, seed: int = 0) -> None:
    """Random numbers in every pool of K and V: raw ones N(0, 1), codes of any bits, scales and minima positive and small."""
    generator = torch.Generator(device=manager.device).manual_seed(seed)
    raw = {id(store.rows) for store in manager.storage.stores.values() if isinstance(store, RawStore)}
    for stream in manager.storage.streams.values():
        for array in stream.payload:
            for layer in range(array.data.shape[0]):
                _fill(array.data[layer], id(array) in raw, generator)


def _fill(data: torch.Tensor, raw: bool, generator: torch.Generator) -> None:
    if raw:
        data.normal_(generator=generator)
    elif data.is_floating_point():
        data.uniform_(0.01, 0.1, generator=generator)
    else:
        limits = torch.iinfo(data.dtype)
        data.random_(limits.min, limits.max, generator=generator)


def counts_after_prompt(manager: CacheManager, params: Mapping[str, Value], prompt: int) -> list[Counts]:
    """What each layer holds of a prompt that came in one chunk."""
    storage = manager.storage
    rows = {(zone, part): prompt if zone == storage.newest_zone else 0 for zone in storage.zone_names for part in PARTS}
    before = Counts(prompt, rows, 0, 0, True)
    return [counts_after_hooks(manager, before, "prefill", layer, params) for layer in range(storage.layers)]


def ragged_rows(rows: int, heads: int, ratio: float) -> np.ndarray:
    """Rows [kv_head], ascending at even distances on a logarithmic scale, `rows` on average; the last holds `ratio` times the first."""
    shares = ratio ** (np.arange(heads) / max(1, heads - 1))
    found = (rows * heads * shares / shares.sum()).astype(np.int64)
    found[-1] += rows * heads - found.sum()
    return found


def open_after_prompt(manager: CacheManager, name: str, params: Mapping[str, Value], prompt: int, ragged: float = 1.0) -> int:
    """A request that holds what the method keeps of a prompt of so many tokens. ragged: see ragged_rows; which head is the longest differs from layer to layer."""
    handle = manager.open(name, params)
    sequence = manager.sequence(handle)
    storage = manager.storage
    sequence.rows = np.zeros_like(sequence.rows)
    sequence.zone_rows = {key: np.zeros_like(held) for key, held in sequence.zone_rows.items()}
    for layer, counts in enumerate(counts_after_prompt(manager, params, prompt)):
        sequence.rows[layer] = counts.length
        for key, held in sequence.zone_rows.items():
            held[layer] = counts.rows[key]
    if ragged != 1:
        assert manager.LAYOUT.scope == "head" and len(storage.zone_names) == 1, "heads of this method hold equal counts of rows"
        sequence.rows[:] = [np.roll(ragged_rows(int(rows[0]), storage.heads, ragged), layer) for layer, rows in enumerate(sequence.rows)]
        sequence.zone_rows = {key: sequence.rows.copy() for key in sequence.zone_rows}
    sequence.length, sequence.prompt_rows = prompt, sequence.rows.copy()
    assert sequence.rows.any(), "a prompt of no rows"
    for name, pages in pages_held(storage, sequence.rows, sequence.zone_rows).items():
        sequence.tables[name].grow(pages, storage.streams[name].pool)
    if sequence.ring is not None:
        sequence.ring.normal_()
    _fill_rows(manager, [sequence])
    return handle


@torch.no_grad()
def _fill_rows(manager: CacheManager, sequences: list[Sequence]) -> None:
    """Positions spread evenly over the prompt, states random, summaries by their equations."""
    storage = manager.storage
    batch = StepBatch((1,), 1, "decode", True, (0,))
    step = Step(batch, sequences, storage.addresses(sequences), manager.device, manager.LAYOUT)
    step.rows = step.before
    at = step.addresses[storage.row_stream.name]
    for layer in range(storage.layers):
        held = int(sequences[0].rows[layer].max())
        slots = at.slots(layer)[:, :, :held].flatten()
        if storage.positions is not None:
            spread = torch.linspace(0, sequences[0].length - 1, held, device=manager.device).to(torch.int32)
            storage.positions.flat(layer)[slots] = spread.repeat(len(slots) // held)
        for layout, array in storage.token_states.values():
            kind = dtype_of(layout.dtype, storage.dtype)
            array.flat(layer)[slots] = torch.rand(len(slots), device=manager.device).to(kind)
        if storage.summaries:
            resident = Resident(storage, step, layer)
            refresh(resident, manager.summary_equations, np.zeros_like(resident.rows))


def shuffle_pages(manager: CacheManager, seed: int = 0) -> None:
    """Pages are handed out in random order, as after long service."""
    for stream in manager.storage.streams.values():
        stream.pool.shuffle(np.random.default_rng(seed))
