"""CacheManager: storage and execution of one forward for one method. The generated manager of an artifact is its subclass.

The engine's order: begin_step (pages) -> attend per layer (write, hooks, attention) -> finish (hooks after sampling) -> commit_step (stored
rows change, pages are freed). rollback_step undoes a step that failed anywhere before its commit. Knows no model and no request policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from .attention.decode import attend_decode
from .attention.prefill import attend_prefill
from .decode_plan import DecodePlan
from .fold import bytes_together, folded
from .gpu.start import chunk_attention, chunk_writing, settling
from .hooks import AFTER_ATTENTION, AFTER_SAMPLING, BEFORE_ATTENTION, END_OF_PROMPT, FINISH_STEP, HOOKS, bindings_that_fire, bound_hooks, fires
from .layout import PARTS, Counts, Layout
from .memory import OutOfPages, PageCounts
from .params import ParamSpec, Value, Values, resolve_params
from .planning import page_need, pages_held, pages_planned
from .resident import Resident
from .rope import Rope
from .sequence import Sequence
from .settle import settle
from .states import initial_plain
from .step import Step, StepBatch
from .storage import Storage
from .summaries import refresh
from .views import Recorder, View
from .writing import write_new_rows

__all__ = ["CacheManager", "KvBytes", "StepBatch"]


Guard = Callable[[int, Mapping[str, float | int]], bool]
NEEDS_KEPT = 1 << 12  # peaks of requests by their lengths and params: admission asks again for one that waits


class Shape(Protocol):
    """What the cache needs of a ModelShape."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    scale: float


@dataclass(frozen=True, slots=True)
class KvBytes:
    """kv: pages of K and V (codes, scales, minima) that a request owns; state: everything else it owns; peak: most kv so far."""

    kv: int
    state: int
    peak: int


class CacheManager:
    """Subclasses set LAYOUT and PARAMS and define `<hook>(self, view)` per bound hook, `summary_<name>(self, view)` per summary, `rows_after`."""

    LAYOUT: ClassVar[Layout] = Layout()
    PARAMS: ClassVar[tuple[ParamSpec, ...]] = ()
    FACTS: ClassVar[Mapping[str, object]] = {}
    GUARDS: ClassVar[Mapping[str, tuple[Guard | None, ...]]] = {}  # the layers of each binding of a hook; None: all
    DECODE: ClassVar[DecodePlan] = DecodePlan()
    decode_kernels: ClassVar[Callable[[], ModuleType] | None] = None  # the generated Triton module of an artifact that has one

    def __init__(
        self,
        shape: Shape,
        rope: Rope,
        dtype: torch.dtype,
        device: torch.device | str,
        pool_tokens: int | Mapping[str, int],
        max_requests: int = 64,
        chunk: int = 512,
        shorter_chunks: tuple[int, ...] = (),  # sizes that whole chunks may have beside `chunk`, descending
    ) -> None:
        self.device = torch.device(device)
        self.max_requests, self.chunk = max_requests, chunk
        self.model_facts: dict[str, float | int] = {
            "n_layers": shape.layers, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "group": shape.q_heads // shape.kv_heads,
            "kv_width": 2 * shape.kv_heads * shape.head_dim, "scale": shape.scale,
            "context": shape.max_positions,
        }  # fmt: skip
        self.storage = Storage(self.LAYOUT, self.model_facts, rope.to(self.device), dtype, self.device, pool_tokens)
        pooled = pool_tokens if isinstance(pool_tokens, int) else sum(pool_tokens.values())
        self.chunk_attention = chunk_attention(shape, dtype, self.device, (chunk, *shorter_chunks), pooled)
        self.settle = settling(type(self), self.device)
        self.write_chunk = chunk_writing(type(self), rope, self.device)
        self.recorder: Recorder | None = None  # where there is one, hooks run for one layer after the other
        self._hooks = bound_hooks(type(self))
        self._fired = {hook: [self.fires(hook, layer) for layer in range(shape.layers)] for hook in HOOKS}
        self._alike = [tuple(bindings_that_fire(type(self), hook, layer, self.model_facts) for hook in AFTER_SAMPLING) for layer in range(shape.layers)]
        self._pools_as_one = self.storage.with_layers_as_rows()
        self.summary_equations = {name: getattr(self, f"summary_{name}") for name in self.storage.summaries}
        self._sequences: dict[int, Sequence] = {}
        self._opened = 0
        self._step: Step | None = None
        self._residents: dict[int, Resident] = {}  # by layer, while layers run
        self._late: list[Resident] = []  # after sampling: of many layers each, in order (fold.py)
        self._needs: dict[tuple[object, ...], int] = {}

    # ---- requests ------------------------------------------------------------------------------

    def resolve_params(self, given: Values, prompt_tokens: int | None = None) -> dict[str, Value]:
        """Every param of one request; raises ParamError. "25%" is that share of the prompt."""
        return resolve_params(self.PARAMS, given, self.model_facts, prompt_tokens)

    def open(self, request_id: str, params: Values) -> int:
        """A new request that holds nothing yet; params as resolve_params gives them."""
        assert len(self._sequences) < self.max_requests, f"more than {self.max_requests} requests are open"
        storage = self.storage
        empty = np.zeros((storage.layers, storage.heads), dtype=np.int64)
        sequence = Sequence(
            request_id, params, empty, {(zone, part): empty for zone in storage.zone_names for part in PARTS},
            {name: stream.table() for name, stream in storage.streams.items()},
        )  # fmt: skip
        ring = 0 if self.LAYOUT.ring is None else self.LAYOUT.ring(params, self.model_facts)
        if ring:
            heads = storage.heads * int(self.model_facts["group"])
            sequence.ring = torch.zeros((storage.layers, ring, heads, storage.head_dim), dtype=storage.dtype, device=self.device)
        for state in self.LAYOUT.plain_states:
            sequence.states[state.name] = initial_plain(state, self.model_facts, storage.dtype, self.device)
        self._opened += 1
        self._sequences[self._opened] = sequence
        return self._opened

    def sequence(self, handle: int) -> Sequence:
        """A request's tables, counts and states, for whoever runs its steps or traces them."""
        return self._sequences[handle]

    def close(self, handle: int) -> None:
        """Frees everything that a request holds."""
        assert self._step is None, "a request is closed between steps"
        sequence = self._sequences.pop(handle)
        for name, stream in self.storage.streams.items():
            sequence.tables[name].shrink(np.zeros_like(sequence.tables[name].used), stream.pool)
            stream.pool.check_conserved()

    # ---- one step ------------------------------------------------------------------------------

    def begin_step(self, batch: StepBatch) -> None:
        """Allocates the pages of the step's new rows and of the moves that it will make, or raises OutOfPages with nothing changed."""
        assert self._step is None, "the last step was neither committed nor rolled back"
        self._open_step(batch, self.reserve_pages(batch))

    def reserve_pages(self, batch: StepBatch) -> list[Sequence]:
        """begin_step's allocation alone, for a step whose layers run as one graph; returns the batch's sequences."""
        sequences = [self._sequences[handle] for handle in batch.handles]
        wanted = [pages_planned(self, sequence, batch, row) for row, sequence in enumerate(sequences)]
        for name, stream in self.storage.streams.items():
            missing = sum(sequence.tables[name].missing(pages[name]) for sequence, pages in zip(sequences, wanted))
            if missing > stream.pool.free:
                raise OutOfPages(name, missing, stream.pool.free)
        for name, stream in self.storage.streams.items():
            for sequence, pages in zip(sequences, wanted):
                sequence.tables[name].grow(pages[name], stream.pool)
        for sequence in sequences:
            sequence.peak_bytes = max(sequence.peak_bytes, self._kv_bytes(sequence))
        return sequences

    def resume_step(self, batch: StepBatch, sequences: list[Sequence]) -> None:
        """A step whose rows a graph has written, up to its sampling: `finish` and `commit_step` follow."""
        self._open_step(batch, sequences)
        self._residents = {layer: Resident(self.storage, self._active_step(), layer) for layer in range(self.storage.layers)}

    def release_step(self, sequences: list[Sequence]) -> None:
        """Frees the pages beyond the rows that are counted: of a step that failed, or of rows that a kernel has evicted."""
        for sequence in sequences:
            self._trim(sequence)

    def _open_step(self, batch: StepBatch, sequences: list[Sequence]) -> None:
        assert all(sequence.scattered is None for sequence in sequences), "hooks in torch read rows in order of position"
        self._step = Step(batch, sequences, self.storage.addresses(sequences), self.device, self.LAYOUT)
        self._residents = {}

    @torch.no_grad()
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """One layer of the forward: q [row, token, q_head, channel] and k, v [row, token, kv_head, channel] before RoPE -> like q."""
        step = self._active_step()
        assert layer not in self._residents, f"layer {layer} attends twice in one step"
        resident = self._residents[layer] = Resident(self.storage, step, layer)
        queries = write_new_rows(resident, q, k, v, self.write_chunk if step.batch.phase == "prefill" else None)
        if self.summary_equations:
            refresh(resident, self.summary_equations, step.before[:, layer])
        view = View(resident, self.model_facts, queries, hidden, self.recorder)
        self._fire(BEFORE_ATTENTION[step.batch.phase], view)
        out = self._attention(resident, queries)
        self._fire(AFTER_ATTENTION[step.batch.phase], view)
        resident.forget_payload()
        return out.flatten(2, 3)

    @torch.no_grad()
    def finish(self) -> None:
        """Hooks after sampling: end_of_prompt in all layers, then finish_step in all layers."""
        step = self._active_step()
        self._late = self._after_layers()
        if step.ends_prompt:
            self._fire_everywhere(END_OF_PROMPT)
            _carry_out_decisions(self._late)
            step.prompt_rows = self._by_layer(self._late, lambda resident: resident.rows)
            for resident in self._late:
                resident.step.prompt_rows[:, resident.layer] = resident.rows
        self._fire_everywhere(FINISH_STEP)

    @torch.no_grad()
    def commit_step(self) -> None:
        """Makes the hooks' decisions real, frees the pages that they emptied, and counts the step's rows."""
        step = self._active_step()
        residents = self._late or self._after_layers()
        _carry_out_decisions(residents)
        doubted = [right for resident in residents for right in resident.doubted]
        assert not doubted or bool(torch.stack(doubted).all()), "rows that move to another zone must be the oldest outside it, in position order"
        held = self._counts_after(residents)
        for sequence, counts in zip(step.sequences, held):
            self._check_room(sequence, counts)
        if self.settle is None or not self.settle(self.storage, step, residents):
            for resident in residents:
                settle(resident)
        for resident in residents:
            if self.summary_equations and resident.source is not None:
                refresh(resident, self.summary_equations, np.zeros_like(resident.rows))
        step.store_plain_states()
        for row, (sequence, counts) in enumerate(zip(step.sequences, held)):
            sequence.rows, sequence.zone_rows = counts
            sequence.length += step.tokens
            if step.ends_prompt:
                sequence.prompt_rows = step.prompt_rows[row]
            self._trim(sequence)
        self._end_step()

    def rollback_step(self) -> None:
        """Undoes a step that failed: pools, tables and counts are as before begin_step. Does nothing between steps."""
        if self._step is None:
            return
        for sequence in self._step.sequences:
            self._trim(sequence)
        self._end_step()

    # ---- accounting ----------------------------------------------------------------------------

    def bytes(self, handle: int) -> KvBytes:
        sequence = self._sequences[handle]
        state = sum(
            int(sequence.tables[name].used.sum()) * stream.page_bytes(stream.attached) for name, stream in self.storage.streams.items()
        )
        tensors = [*sequence.states.values(), *([] if sequence.ring is None else [sequence.ring])]
        state += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return KvBytes(self._kv_bytes(sequence), state, sequence.peak_bytes)

    def tokens_evicted(self, handle: int) -> float:
        """Rows evicted, per layer and KV head."""
        sequence = self._sequences[handle]
        return float(sequence.length - sequence.rows.mean())

    def rows(self, handle: int) -> np.ndarray:
        """Rows held [layer, kv_head]."""
        return self._sequences[handle].rows.copy()

    def pages(self) -> PageCounts:
        """Pages over all pools, each pool scaled to the largest and the fullest counted."""
        pools = [stream.pool for stream in self.storage.streams.values()]
        total = max(pool.total for pool in pools)
        live, cached = (max(-(-count * total // pool.total) for count, pool in zip(counts, pools)) for counts in (
            [pool.live for pool in pools], [pool.cached for pool in pools],
        ))  # fmt: skip
        return PageCounts(total, total - live - cached, live, cached)

    def page_need(self, prompt_len: int, new_tokens: int, chunk: int, params: Values) -> int:
        """Most pages that a request can hold at once, in the unit of `pages()`: the peak that admission reserves."""
        key = (prompt_len, new_tokens, chunk, *sorted(params.items(), key=lambda item: item[0]))
        if key not in self._needs:
            if len(self._needs) == NEEDS_KEPT:
                del self._needs[next(iter(self._needs))]  # the oldest
            self._needs[key] = page_need(self, prompt_len, new_tokens, chunk, params)
        return self._needs[key]

    def rows_after(
        self, hook: str, phase: str, counts: Counts, layer: int, params: Values, model: Mapping[str, float | int]
    ) -> Counts:
        """Counts after a hook; overridden by methods that evict or move."""
        return counts

    def hooks_bound(self) -> frozenset[str]:
        """Names of the hooks that this manager has methods for."""
        return self._hooks

    def resident(self, layer: int) -> Resident:
        """What a layer holds in the step that runs, with the decisions of its hooks so far; for traces, which see one layer after the other."""
        assert self.recorder is not None, "without a recorder, hooks after sampling decide for many layers at once"
        return self._residents[layer]

    def fires(self, hook: str, layer: int) -> bool:
        """Whether some binding of the hook runs in a layer."""
        return fires(type(self), hook, layer, self.model_facts)

    # ---- inside --------------------------------------------------------------------------------

    def _active_step(self) -> Step:
        assert self._step is not None, "no step has begun"
        return self._step

    def _fire(self, hooks: tuple[str, ...], view: View) -> None:
        for hook in hooks:
            if self._fired[hook][view.some_layer]:
                getattr(self, hook)(view)

    def _fire_everywhere(self, hook: str) -> None:
        if hook not in self._hooks:
            return
        for resident in self._late:
            view = View(resident, self.model_facts, None, None, self.recorder)
            if self._fired[hook][view.some_layer]:
                getattr(self, hook)(view)
                resident.forget_payload()

    def _after_layers(self) -> list[Resident]:
        """What the layers hold once all have run, as few residents as hooks may run for at once."""
        assert len(self._residents) == self.storage.layers, f"{len(self._residents)} of {self.storage.layers} layers ran"
        residents = [self._residents[layer] for layer in range(self.storage.layers)]
        if self.recorder is not None or self.storage.joins_layers:
            return residents
        _carry_out_decisions(residents)
        return folded(residents, self._pools_as_one, self._alike, bytes_together(self.device))

    def _attention(self, resident: Resident, queries: Tensor) -> Tensor:
        scale, tokens = float(self.model_facts["scale"]), resident.step.tokens
        if self.recorder is not None:
            self.recorder.attended(resident.layer, resident.attended_by(tokens - 1, tokens, resident.width)[:, 0])
        prefilling = resident.step.batch.phase == "prefill"
        if prefilling and self.chunk_attention is not None and resident.plain:
            out, resident.lse = self.chunk_attention(queries, resident.pieces("K"), resident.pieces("V"), scale)
            return out
        keys, values = resident.keys(), resident.payload("V")
        if prefilling:
            return attend_prefill(queries, keys, values, resident.attended_by, scale)
        lengths = resident.rows.max(axis=1).tolist()
        mask = resident.attended_by(0, 1, resident.width)[:, 0]
        return attend_decode(queries[:, 0], keys, values, mask, lengths, scale)[:, None]

    def _counts_after(self, residents: list[Resident]) -> list[tuple[np.ndarray, dict[tuple[str, str], np.ndarray]]]:
        """By request: rows, and rows of each zone's parts, [layer, kv_head]."""
        rows = self._by_layer(residents, lambda resident: resident.rows)
        zones = {key: self._by_layer(residents, lambda resident: resident.zone_rows[key]) for key in residents[0].zone_rows}
        return [(rows[row], {key: counts[row] for key, counts in zones.items()}) for row in range(len(rows))]

    def _by_layer(self, residents: list[Resident], counts: Callable[[Resident], np.ndarray]) -> np.ndarray:
        """Counts of residents' rows [row, kv_head] as [request, layer, kv_head]."""
        requests = len(self._active_step().sequences)
        return np.concatenate([counts(each).reshape(-1, requests, self.storage.heads) for each in residents]).swapaxes(0, 1)

    def _check_room(self, sequence: Sequence, counts: tuple[np.ndarray, dict[tuple[str, str], np.ndarray]]) -> None:
        for name, pages in pages_held(self.storage, *counts).items():
            planned = (pages <= sequence.tables[name].used).all()
            assert planned, f"hooks moved more rows to '{name}' than rows_after told: pages were not planned"

    def _trim(self, sequence: Sequence) -> None:
        """Releases pages beyond the rows that are counted."""
        for name, pages in pages_held(self.storage, sequence.rows, sequence.zone_rows).items():
            sequence.tables[name].shrink(pages, self.storage.streams[name].pool)

    def _end_step(self) -> None:
        self._step, self._residents, self._late = None, {}, []
        for stream in self.storage.streams.values():
            stream.pool.check_conserved()

    def _kv_bytes(self, sequence: Sequence) -> int:
        streams = self.storage.streams.items()
        return sum(int(sequence.tables[name].used.sum()) * stream.page_bytes(stream.payload) for name, stream in streams)


def _carry_out_decisions(residents: list[Resident]) -> None:
    """What hooks have decided so far; one read of the device for all layers."""
    waiting = [(resident, resident.awaited) for resident in residents]
    counts = [count for _, awaited in waiting for count in awaited]
    told = iter(torch.cat(counts).cpu().numpy() if counts else ())
    for resident, awaited in waiting:
        resident.carry_out([np.stack([next(told) for _ in range(len(count))]) for count in awaited])
