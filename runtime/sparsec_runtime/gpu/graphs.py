"""Decode steps on a CUDA device: the host plans and counts, one captured graph a batch bucket runs every layer, hooks and sampling.

Order of a step: begin_step (pages) -> run (mirror what changed, replay) -> commit_step (counts; evictions and moves that the counts say are due, in bulk,
by kernels or, where none does them, by the generated hooks). No tensor is read on the host but by such hooks. A row that turns out to have ended with
the step before is dropped between run and commit_step. Rows with logprobs or a logit bias are sampled outside the graph, from the logits that it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..cache import CacheManager
from ..decode_plan import At, Moves
from ..hooks import FINISH_STEP, bound_hooks
from ..models.loading import LoadedModel
from ..planning import ZoneRows, zones_after
from ..sequence import Sequence
from ..step import StepBatch
from .addresses import CapturedAddresses
from .buffers import DecodeBuffers, Scratch, page_tables
from .counts import StepCounts, at_of
from .eligible import layer_reasons, reasons_against_graph
from .evict import evict, evicts_on_device, turn_prompt
from .forward import DecodeForward, StepKind
from .mirror import TableMirror
from .moves import counts_of_step, move_rows
from .row_sampling import Draws, RowSampling, draws_of
from .sampling import SampleBuffers
from .transfer import send
from .tuning import tuning_of

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


class CannotCapture(Exception):
    """The method or the model has something that no kernel does; the message says what."""


@dataclass(slots=True, eq=False)
class _Bucket:
    """captured: a graph, the logits that it writes, and where its tensors lay, for each kind of step."""

    buffers: DecodeBuffers
    mirror: TableMirror
    captured: dict[StepKind, tuple[torch.cuda.CUDAGraph, Tensor, CapturedAddresses]] = field(default_factory=dict)


class DecodeGraphs:
    """tokens: rows that one request can hold in a layer, at most. forward: what a step runs. capture: as graphs, where there is CUDA.
    check_every: steps between two checks that no captured tensor has moved."""

    def __init__(
        self, model: LoadedModel, manager: CacheManager, pool_tokens: int, tokens: int | None = None,
        forward: type[DecodeForward] = DecodeForward, capture: bool = True, check_every: int = 1000,
    ) -> None:  # fmt: skip
        reasons = reasons_against_graph(type(manager)) + forward.reasons_against(type(manager), model) + layer_reasons(manager)
        if reasons:
            raise CannotCapture("; ".join(reasons))
        if manager.DECODE.moves is not None:  # codes are small: all rows together may be more than raw ones of the same memory
            rows = manager.storage.row_stream.geometry
            pool_tokens = rows.pages * rows.page_size
        self.manager, self.model, self.pool_tokens, self.check_every = manager, model, pool_tokens, check_every
        self.tokens = min(pool_tokens, tokens or model.shape.max_positions)
        self._counts = StepCounts(manager.DECODE, manager.storage, self.tokens)
        storage, plan, layers = manager.storage, manager.DECODE, range(model.shape.layers)
        lists = tuple(plan.tokens is not None and manager.fires("after_decode_attention", layer) for layer in layers)
        self.forward = forward(
            model, forward.weights_of(model), storage, plan,
            chooses=tuple(plan.pages is not None and manager.fires("build_decode_selection", layer) for layer in layers),
            weighs=tuple(plan.mass is not None and manager.fires("after_decode_attention", layer) for layer in layers),
            lists=lists, reads=tuple(any(lists[:layer]) and manager.fires("build_decode_selection", layer) for layer in layers),
            tuning=tuning_of(storage.device, storage.head_dim * storage.dtype.itemsize),
            ranked=plan.asks_firsts(manager.LAYOUT.position), kernels=type(manager).decode_kernels(),
        )  # fmt: skip
        self._finishes = FINISH_STEP in bound_hooks(type(manager)) - set(plan.idle)
        self._buckets: dict[int, _Bucket] = {}
        self._scratch = Scratch(storage.device)
        self._mirror: TableMirror | None = None  # of the largest bucket so far
        self._memory = torch.cuda.graph_pool_handle() if capture and storage.device.type == "cuda" else None
        self._batch: StepBatch | None = None
        self._sequences: list[Sequence] = []
        self._bucket: _Bucket | None = None  # that ran the step
        self._after: list[np.ndarray] | None = None  # rows after the step's finish_step, once they are counted
        self._peaks: list[int] = []  # of the sequences before the step
        self._dropped: set[int] = set()  # rows of the step that are no longer in it
        self._draws: Draws = "greedy"
        self._steps = 0
        self.bulk_steps = 0  # steps after which rows were evicted
        self.captures = 0  # graphs captured so far

    @property
    def lets_rows_go(self) -> bool:
        """Whether rows are evicted or moved after some steps: by kernels between two graphs."""
        return self._finishes or self.manager.DECODE.moves is not None

    @torch.no_grad()
    def warm_up(self, rows: int) -> None:
        """Captures the steps of every bucket for up to `rows` requests of default params, greedy or sampled, so that none of them waits for a compiler.

        Steps of requests with penalties, which need counts of the whole vocabulary for each row, are captured when they are first needed.
        """
        if self._memory is None:
            return
        params = self.manager.resolve_params({}, prompt_tokens=self.tokens)
        keep = self.manager.DECODE.keep
        asks = (False, True) if keep is not None and keep.asked is not None else (False,)
        kinds = [StepKind(asking, draws) for draws in ("greedy", "sampled") for asking in asks]
        for size in reversed([size for n, size in enumerate(BUCKETS) if n == 0 or BUCKETS[n - 1] < rows]):
            bucket = self._buckets[size] = self._make_bucket(size, self._counts.chosen([At(params, self.tokens, self.tokens)]))
            self._sampling_of(bucket.buffers)
            for kind in kinds:
                bucket.captured[kind] = self._capture(bucket.buffers, kind)

    # ---- one step ------------------------------------------------------------------------------

    def begin_step(self, batch: StepBatch) -> None:
        """Allocates the step's pages, or raises OutOfPages with nothing changed."""
        assert batch.phase == "decode" and self._batch is None, "one decode step at a time"
        peaks = [self.manager.sequence(handle).peak_bytes for handle in batch.handles]
        self._sequences = self.manager.reserve_pages(batch)
        self._batch, self._peaks, self._dropped, self._after = batch, peaks, set(), None

    def replay(self, rows: int) -> None:
        """The graph of a bucket again, on whatever its buffers hold: for profiles."""
        captured = self._buckets[next(size for size in BUCKETS if size >= rows)].captured
        assert captured, "nothing was captured"
        next(iter(captured.values()))[0].replay()

    def buffers_of(self, rows: int) -> DecodeBuffers:
        """Those of the bucket that ran so many rows, as its last step left them: for whoever times a piece of a step."""
        return self._buckets[next(size for size in BUCKETS if size >= rows)].buffers

    @torch.no_grad()
    def run(self, ids: Many[int] | None = None, sampling: Many[RowSampling] = ()) -> tuple[Tensor, Tensor]:
        """Ids [row] that follow (-1 where a logit was no number) and logits [row, vocab], both overwritten by the next step.

        ids: the rows' newest tokens; None: those that the last step of the same batch chose, which never left the device. sampling: how the rows
        sample, sent with `ids`; rows that are not named are greedy.
        """
        assert self._batch is not None, "no step has begun"
        bucket = self._bucket = self._bucket_of(len(self._sequences))
        bucket.mirror.update(self._batch.handles, self._sequences)
        self._turn_prompts(bucket)
        self._send_counts(bucket.buffers, ids)
        if ids is not None:
            self._send_sampling(bucket.buffers, sampling)
        self._steps += 1
        logits = self._launch(bucket, self._kind())
        rows = len(self._sequences)
        return bucket.buffers.ids[:rows], logits[:rows]

    def commit_step(self) -> None:
        """Counts the step's rows; where the host's counts say that rows go, they are evicted or moved."""
        assert self._batch is not None, "no step has begun"
        if self.manager.DECODE.moves is not None:
            self._commit_moves(self._batch, self.manager.DECODE.moves)
            return
        after = self._rows_after_step()
        if len(self._dropped) == len(self._sequences):
            pass  # nobody is left
        elif self._evicting(after):
            self._evict(self._batch, self._sequences, after)
            self.bulk_steps += 1
        else:
            _count(self._sequences, after)
        self._batch, self._sequences = None, []

    def _commit_moves(self, batch: StepBatch, moves: Moves) -> None:
        sequences, left = self._sequences, [row for row in range(len(self._sequences)) if row not in self._dropped]
        after: list[ZoneRows] = [sequence.zone_rows for sequence in sequences]  # of a row that is no longer in the step, nothing goes
        for row in left:
            after[row] = zones_after(self.manager, sequences[row], batch, row)
        going = {part: max(int((zones[moves.to, part] - s.zone_rows[moves.to, part]).max()) for s, zones in zip(sequences, after)) for part in moves.parts}
        if any(going.values()):
            assert self._bucket is not None, "no step has run"
            move_rows(self.manager.storage, moves, self._bucket.buffers.tables, counts_of_step(moves, sequences, after))
            self.bulk_steps += 1
        for row in left:
            sequences[row].rows, sequences[row].zone_rows = sequences[row].rows + 1, dict(after[row])
            sequences[row].length += 1
        if any(rows >= self.manager.storage.stream_of(moves.zone, part).geometry.page_size for part, rows in going.items()):
            # The pages behind the rows that stay in the newest zone; one page less would be asked for again by the next rows.
            self.manager.release_step([sequences[row] for row in left])
        self._batch, self._sequences = None, []

    def drop(self, handle: int) -> None:
        """Takes a request out of the step that runs, if it is in it, as if it had not been: its id of the step before was its last."""
        if self._batch is None or handle not in self._batch.handles:
            return
        row = self._batch.handles.index(handle)
        self._dropped.add(row)
        self.manager.release_step([self._sequences[row]])
        self._sequences[row].peak_bytes = self._peaks[row]

    def rollback_step(self) -> None:
        """Undoes a step that failed before its commit; nothing that was counted has changed."""
        if self._batch is None:
            return
        self.manager.rollback_step()
        self.manager.release_step(self._sequences)
        self._batch, self._sequences = None, []

    # ---- what the host tells the device ----------------------------------------------------------

    def _kind(self) -> StepKind:
        keep = self.manager.DECODE.keep
        return StepKind(keep is not None and keep.asked is not None and self._evicting(self._rows_after_step()), self._draws)

    def _evicting(self, after: list[np.ndarray]) -> bool:
        return any((rows != sequence.rows + 1).any() for rows, sequence in zip(after, self._sequences))

    def _rows_after_step(self) -> list[np.ndarray]:
        """Counted once a step: before it where its kind depends on them, else while the device runs."""
        if self._after is None:
            self._after = [self._rows_after(sequence, row) for row, sequence in enumerate(self._sequences)]
        return self._after

    def _rows_after(self, sequence: Sequence, row: int) -> np.ndarray:
        """Rows [layer, kv_head] after finish_step."""
        if not self._finishes:
            return sequence.rows + 1
        assert self._batch is not None
        return zones_after(self.manager, sequence, self._batch, row)[self.manager.storage.newest_zone, "K"]

    def _evict(self, batch: StepBatch, sequences: list[Sequence], after: list[np.ndarray]) -> None:
        storage, keep = self.manager.storage, self.manager.DECODE.keep
        if keep is not None and evicts_on_device(storage):
            assert self._bucket is not None, "no step has run"
            evict(storage, self.manager.DECODE, self._bucket.buffers, sequences, [int(rows[0, 0]) for rows in after])
            _count(sequences, after)
            # The pages behind the rows that stay; the last to give one back is the first to be given it again, so that its table is not sent anew.
            self.manager.release_step(sequences[::-1])
            return
        left = [row for row in range(len(sequences)) if row not in self._dropped]
        batch = replace(batch, handles=tuple(batch.handles[row] for row in left), steps=tuple(batch.steps[row] for row in left))
        self.manager.resume_step(batch, [sequences[row] for row in left])
        self.manager.finish()
        self.manager.commit_step()

    def _turn_prompts(self, bucket: _Bucket) -> None:
        """Where a query of their own asks the first rows, K of a prompt, stored before RoPE, is turned in place (kernels/turn.py)."""
        if not self.forward.ranked:
            return
        for row, sequence in enumerate(self._sequences):
            if not sequence.turned:
                turn_prompt(self.manager.storage, bucket.buffers.table[row], int(sequence.rows[0, 0]))
                sequence.turned = True

    def _send_counts(self, buffers: DecodeBuffers, ids: Many[int] | None) -> None:
        send(buffers.counts, self._counts.of(self._sequences, buffers.rows, tuple(buffers.held.shape)))
        if ids is not None:
            padded = np.zeros(buffers.rows, dtype=np.int64)
            padded[: len(self._sequences)] = ids
            send(buffers.ids, padded)

    def _send_sampling(self, buffers: DecodeBuffers, rows: Many[RowSampling]) -> None:
        self._draws = draws_of(rows)
        if self._draws == "greedy":
            return
        self._sampling_of(buffers).set(rows)

    def _sampling_of(self, buffers: DecodeBuffers) -> SampleBuffers:
        if buffers.sampling is None:
            buffers.sampling = SampleBuffers(buffers.rows, self.model.shape.vocab, self.manager.storage.device)
        return buffers.sampling

    # ---- buckets ---------------------------------------------------------------------------------

    def _bucket_of(self, rows: int) -> _Bucket:
        size = next(bucket for bucket in BUCKETS if bucket >= rows)
        wanted = self._counts.chosen(at_of(sequence) for sequence in self._sequences)
        bucket = self._buckets.get(size)
        if bucket is None or bucket.buffers.choice < wanted:
            bucket = self._buckets[size] = self._make_bucket(size, wanted) if bucket is None else self._wider(bucket, wanted)
        return bucket

    def _wider(self, bucket: _Bucket, wanted: int) -> _Bucket:
        """Room for a larger choice; where one grows with every step, captures stay few."""
        made = self._make_bucket(bucket.buffers.rows, max(wanted, 2 * bucket.buffers.choice))
        made.buffers.ids.copy_(bucket.buffers.ids)  # what the last step chose
        made.buffers.sampling = bucket.buffers.sampling
        return made

    def _make_bucket(self, rows: int, choice: int) -> _Bucket:
        forward = self.forward
        storage = self.manager.storage
        if self._mirror is None or self._mirror.rows < rows:  # graphs of smaller buckets go on with the tables that they captured
            self._mirror = TableMirror(page_tables(rows, self.tokens, storage))
        buffers = DecodeBuffers(
            rows, self.tokens, choice, self._mirror.tables, storage, self.model.shape, self.manager.DECODE, forward.tuning, self.pool_tokens, self._scratch
        )
        return _Bucket(buffers, self._mirror)

    def _launch(self, bucket: _Bucket, kind: StepKind) -> Tensor:
        """Logits of one step, by the bucket's graph of this kind, which is captured when it is first needed."""
        if self._memory is None:
            return self.forward(bucket.buffers, kind)
        if kind not in bucket.captured:
            bucket.captured[kind] = self._capture(bucket.buffers, kind)
        graph, logits, addresses = bucket.captured[kind]
        if self._steps % self.check_every == 0:
            addresses.check(self.model, self.manager.storage, bucket.buffers)
        graph.replay()
        return logits

    def _capture(self, buffers: DecodeBuffers, kind: StepKind) -> tuple[torch.cuda.CUDAGraph, Tensor, CapturedAddresses]:
        self.captures += 1
        changed = [buffers.counts, buffers.ids, *([] if buffers.sampling is None else buffers.sampling.counted)]
        before = [tensor.clone() for tensor in changed]
        buffers.counts.zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles every kernel, on rows that hold nothing
            self.forward(buffers, kind)
        torch.cuda.current_stream().wait_stream(side)
        for tensor, value in zip(changed, before):
            tensor.copy_(value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            logits = self.forward(buffers, kind)
        return graph, logits, CapturedAddresses.of(self.model, self.manager.storage, buffers)


def _count(sequences: list[Sequence], after: list[np.ndarray]) -> None:
    """The step's token is computed, and these rows [layer, kv_head] are held in the only zone."""
    for sequence, rows in zip(sequences, after):
        sequence.rows, sequence.zone_rows = rows, dict.fromkeys(sequence.zone_rows, rows)
        sequence.length += 1
