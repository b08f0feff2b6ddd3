"""Drives the generated CacheManager as the engine does, with generated Q, K and V in the place of a model, and watches what it does.

A `Feed` is one sequence on the machine. Prompts run in chunks, one sequence each; decode steps take any number of sequences together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsec.reference.values import Scalar, Value
from sparsec.verify.oracle import Run, Step
from sparsec.verify.traces import ROPE_THETA, Inputs, Shape
from sparsec_runtime.cache import CacheManager, KvBytes, StepBatch
from sparsec_runtime.layout import PARTS
from sparsec_runtime.resident import Resident
from sparsec_runtime.rope import Rope


@dataclass(eq=False)
class Feed:
    """One sequence: `done` tokens are computed; `steps` after the prompt and after each decode step."""

    inputs: Inputs
    params: Mapping[str, Scalar]
    handle: int
    done: int = 0
    steps: list[Step] = field(default_factory=list)
    bytes: list[KvBytes] = field(default_factory=list)

    @property
    def decoding(self) -> bool:
        return self.done >= self.inputs.prompt_len

    @property
    def over(self) -> bool:
        return self.done == self.inputs.tokens

    def take(self, part: Tensor, layer: int, count: int) -> Tensor:
        return part[layer, self.done : self.done + count]


class Watch(CacheManager):
    """Mixed in before a generated manager: keeps what every layer of a step read, and what it holds when the step is finished."""

    seen: dict[int, Tensor]
    held: dict[int, _Held]
    stored: dict[int, Stored]
    watch_stored = False
    peak_pages = 0

    def begin_step(self, batch: StepBatch) -> None:
        super().begin_step(batch)
        self.seen, self.held, self.stored = {}, {}, {}
        self.peak_pages = max(self.peak_pages, self.pages().live)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        out = super().attend(layer, q, k, v, hidden)
        resident = self._residents[layer]
        mask = resident.attended_by(0, resident.step.tokens, resident.width)
        rows, queries, heads, _, channels = q.unflatten(2, (k.shape[2], -1)).shape
        mask = mask.expand(rows, queries, heads, q.shape[2] // heads, -1)
        self.seen[layer] = _spread(mask, resident.pos[:, None, :, None].expand(mask.shape), self._tokens).flatten(2, 3)
        if self.watch_stored:
            self.stored[layer] = Stored(resident.pos, resident.keys(), resident.payload("V"), self._zones_of(resident, resident.pos))
        return out

    def finish(self) -> None:
        super().finish()
        requests = len(self._active_step().sequences)
        for resident in self._late:
            layers = dict.fromkeys(resident.step.layer_of_rows(resident.layer).tolist())
            self.held |= zip(layers, _held(self, resident).of_each(requests))

    def _zones_of(self, resident: Resident, like: Tensor) -> Tensor:
        """Zone index of K and of V [row, part, kv_head, entry]."""
        parts = []
        for part in PARTS:
            inside = torch.zeros_like(like)
            for index, zone in enumerate(self.LAYOUT.zones):
                inside = torch.where(resident.in_zone(zone.name, part), index, inside)
            parts.append(inside)
        return torch.stack(parts, 1)

    @property
    def _tokens(self) -> int:
        step = self._active_step()
        return int(step.starts.max()) + step.tokens


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """kept bool [row, kv_head, token]; zones int [row, part, kv_head, token]; states by name, [row, ...] with letters."""

    kept: Tensor
    zones: Tensor
    states: dict[str, tuple[tuple[str, ...], Tensor]]

    def of_each(self, rows: int) -> Iterator[_Held]:
        """By layer, where rows are those of several layers, one behind another."""
        for n in range(0, len(self.kept), rows):
            part = slice(n, n + rows)
            yield _Held(self.kept[part], self.zones[part], {name: (letters, value[part]) for name, (letters, value) in self.states.items()})


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What a step's attention read from the pools, entry by entry: pos [row, kv_head, entry] (-1: padding), K as attended and V
    [row, kv_head, entry, channel], zones [row, part, kv_head, entry]."""

    pos: Tensor
    keys: Tensor
    values: Tensor
    zones: Tensor


def _held(manager: Watch, resident: Resident) -> _Held:
    tokens, pos = manager._tokens, resident.pos
    valid = resident.valid.expand(pos.shape)
    zones = _spread(manager._zones_of(resident, pos), pos[:, None], tokens)
    states = {}
    for layout in manager.LAYOUT.states:
        if layout.shared or layout.per_page:
            continue
        value = resident.state(layout.name)
        if layout.per_token:
            place = pos if "h" in layout.letters else pos[:, 0]
            value = _spread(value, place, tokens)
        states[layout.name] = (layout.letters, value.clone())
    return _Held(_spread(valid, pos, tokens), zones, states)


def _spread(values: Tensor, positions: Tensor, tokens: int) -> Tensor:
    """Values of rows (last axis) to their logical positions; 0 where there is no row."""
    out = torch.zeros(*values.shape[:-1], tokens + 1, dtype=values.dtype)
    index = torch.where(positions < 0, tokens, positions).expand(values.shape)
    return out.scatter(-1, index, values)[..., :tokens]


class Machine:
    """One manager for several sequences. `manager`: the generated class."""

    def __init__(self, manager: type[CacheManager], shape: Shape, chunk: int, pool_tokens: int = 4096) -> None:
        watched = type("Watched", (Watch, manager), {})
        rope = Rope.plain(ROPE_THETA, shape.head_dim)
        self.shape, self.chunk = shape, chunk
        self.manager: Watch = watched(shape.model(), rope, torch.float32, "cpu", pool_tokens=pool_tokens, max_requests=8, chunk=chunk)

    def open(self, inputs: Inputs, params: Mapping[str, Scalar]) -> Feed:
        resolved = self.manager.resolve_params(params, prompt_tokens=inputs.prompt_len)
        return Feed(inputs, resolved, self.manager.open("trace", resolved))

    def close(self, feed: Feed) -> None:
        self.manager.close(feed.handle)

    def prefill(self, feed: Feed) -> None:
        """The whole prompt in chunks."""
        while not feed.decoding:
            self.advance(feed)

    def advance(self, feed: Feed) -> None:
        """The next chunk or decode step of one sequence."""
        self._step([feed], 1 if feed.decoding else min(self.chunk, feed.inputs.prompt_len - feed.done))

    def fail(self, feed: Feed) -> None:
        """A decode step that breaks down after its first layer, and is rolled back."""
        self.manager.begin_step(StepBatch((feed.handle,), 1, "decode", True, (feed.done - feed.inputs.prompt_len,)))
        q, k, v = (feed.take(part(feed), 0, 1)[None] for part in _QKV)
        self.manager.attend(0, q, k, v, q.new_zeros(1, 1, 1))
        self.manager.rollback_step()

    def decode(self, feeds: Sequence[Feed]) -> None:
        """One token of each sequence, in one batch."""
        assert all(feed.decoding and not feed.over for feed in feeds), "a sequence decodes between its prompt and its end"
        self._step(feeds, 1)

    def finish(self, feed: Feed) -> None:
        """All that is left of one sequence, alone."""
        self.prefill(feed)
        while not feed.over:
            self.decode([feed])

    def run(self, inputs: Inputs, params: Mapping[str, Scalar]) -> Run:
        """One sequence alone from its first token to its last."""
        feed = self.open(inputs, params)
        self.finish(feed)
        self.close(feed)
        return Run(feed.steps)

    def _step(self, feeds: Sequence[Feed], count: int) -> None:
        decoding = feeds[0].decoding
        done = tuple(max(0, feed.done - feed.inputs.prompt_len) for feed in feeds)
        ends = feeds[0].done + count >= feeds[0].inputs.prompt_len
        handles = tuple(feed.handle for feed in feeds)
        self.manager.begin_step(StepBatch(handles, count, "decode" if decoding else "prefill", ends, done))
        outs = []
        for layer in range(self.shape.layers):
            q, k, v = (torch.stack([feed.take(part(feed), layer, count) for feed in feeds]) for part in _QKV)
            outs.append(self.manager.attend(layer, q, k, v, q.new_zeros(len(feeds), count, 1)))
        self.manager.finish()
        for row, feed in enumerate(feeds):
            feed.done += count
            if ends:
                feed.steps.append(self._after_step(row, feed, outs))
        self.manager.commit_step()
        for feed in feeds:
            if ends:
                feed.bytes.append(self.manager.bytes(feed.handle))

    def _after_step(self, row: int, feed: Feed, outs: list[Tensor]) -> Step:
        layers, tokens = range(self.shape.layers), feed.done
        held = [self.manager.held[layer] for layer in layers]
        return Step(
            [one.kept[row, :, :tokens] for one in held],
            [self.manager.seen[layer][row, ..., :tokens] for layer in layers],
            [out[row] for out in outs],
            [one.zones[row, ..., :tokens] for one in held],
            [{name: _state(letters, value[row], tokens) for name, (letters, value) in one.states.items()} for one in held],
        )


_QKV = (lambda feed: feed.inputs.q, lambda feed: feed.inputs.k, lambda feed: feed.inputs.v)


def _state(letters: tuple[str, ...], value: Tensor, tokens: int) -> Value:
    return Value(value[..., :tokens] if "t" in letters else value, letters)
