"""The torch target of `sparsec.replay`: the compiled method's own CacheManager and attention, driven on recorded tensors.

Nothing of the engine is imitated: pages, hooks, compaction and codecs are the runtime's. Several requests may decode in one batch,
which is how batches are compared with single requests. The Triton target (replay_triton.py) is this driver with other decode steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsec_runtime.artifact import load_artifact
from sparsec_runtime.cache import StepBatch
from sparsec_runtime.layout import PARTS
from sparsec_runtime.models.shape import ModelShape
from sparsec_runtime.params import ParamError
from sparsec_runtime.resident import Resident
from sparsec_runtime.rope import Rope
from sparsec_runtime.step import Phase
from sparsec_runtime.zones import PackedStore

from sparsec.dsl import tree as t
from sparsec.pipeline import Compilation
from sparsec.replay import ReplayError, ReplayRequest
from sparsec.replay_observed import Recorder, observed, over_rows
from sparsec.trace import Recorded, Trace

SLACK = 512  # rows that pages may leave unused


def run(compilation: Compilation, request: ReplayRequest) -> Trace:
    """Replay one request; the compilation has the params and records what the request asks for."""
    return run_batch(compilation, [(compilation.dynamic_params, request)])[0]


def run_batch(
    compilation: Compilation, requests: Sequence[tuple[Mapping[str, object], ReplayRequest]], joins: Sequence[int] | None = None,
    driver: type[Driver] | None = None,
) -> list[Trace]:  # fmt: skip
    """Replay requests of one model together, each with its own per-request params: prompts one by one, decode steps as one batch.

    joins[n]: decode steps of the batch before request n starts. Everything runs on the device of the requests' tensors.
    """
    driver = driver or Driver
    for _, request in requests:
        driver.check_record(compilation, request.record)
    made = driver(compilation, [request for _, request in requests])
    return made.run([params for params, _ in requests], list(joins or [0] * len(requests)))


def stored_names(compilation: Compilation) -> set[str]:
    """What outlives a step and can be recorded: states, summaries, stores with their scales and minima, rows of zones."""
    layout = compilation.plan.layout
    stores = [codec.store for zone in layout.zones for codec in (zone.key, zone.value) if codec is not None]
    known = {state.name for state in layout.states if not state.shared} | {summary.name for summary in layout.summaries}
    known |= {f"{zone.name}.rows" for zone in layout.zones}
    return known | {name + part for name in stores for part in ("", ".scale", ".min")}


def passing_names(compilation: Compilation) -> set[str]:
    """What exists while a step runs: lets, and states that layers share."""
    shared = {state.name for state in compilation.plan.layout.states if state.shared}
    return shared | {node.target.name.text for node in t.walk(compilation.special.method) if isinstance(node, t.Let)}


@dataclass(eq=False)
class Run:
    """One request on its way: `done` tokens computed, `steps` decode steps."""

    request: ReplayRequest
    params: Mapping[str, object]
    join: int
    handle: int = -1
    done: int = 0
    steps: int = 0
    kept: list[list[list[Tensor]]] = field(default_factory=list)
    attended: list[list[list[Tensor]]] = field(default_factory=list)
    recorded: dict[str, list[list[Recorded | None]]] = field(default_factory=dict)
    output: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def finished(self) -> bool:
        return self.done == self.request.tokens

    def trace(self) -> Trace:
        """On the CPU, whatever the device."""
        kept, attended = ([[[x.cpu() for x in heads] for heads in layers] for layers in steps] for steps in (self.kept, self.attended))
        recorded = {name: [[_on_cpu(value) for value in layers] for layers in steps] for name, steps in self.recorded.items()}
        return Trace(kept, attended, self.output, recorded)


class Driver:
    """Plays the engine: begin_step, every layer, finish, commit_step."""

    @staticmethod
    def check_record(compilation: Compilation, names: tuple[str, ...]) -> None:
        known = stored_names(compilation) | passing_names(compilation)
        for name in names:
            if name not in known:
                raise ReplayError(f"record: the method has no state, let, summary or store called {name}; it has {', '.join(sorted(known))}")

    def __init__(self, compilation: Compilation, requests: list[ReplayRequest]) -> None:
        self.requests, self.compilation = requests, compilation
        first = requests[0]
        self.layers, self.group = first.layers, first.group
        self.device = first.k.device
        self.longest = max(request.tokens for request in requests)
        self.shape = _shape(first, self.longest)
        _refuse_rotated(compilation, first)
        self.rope = first.rope if not first.rotated and first.rope is not None else _unturned(first.head_dim)
        self.rows = sum(request.tokens + SLACK for request in requests)
        chunk = max(request.chunk or request.prompt_len for request in requests)
        kind = observed(load_artifact(compilation.artifact.path), [request.q_start for request in requests])
        self.manager = kind(self.shape, self.rope, first.dtype, self.device, self.rows, len(requests), chunk)
        self.recorder = Recorder(self.manager)
        self.manager.recorder = self.recorder

    def run(self, params: list[Mapping[str, object]], joins: list[int]) -> list[Trace]:
        runs = [Run(request, given, join) for request, given, join in zip(self.requests, params, joins)]
        for each in runs:
            _, tokens, heads, channels = each.request.q.shape
            each.output = torch.zeros(self.layers, tokens, heads, channels, dtype=torch.float32)
        step = 0
        while not all(each.finished for each in runs):
            for each in runs:
                if each.handle < 0 and each.join <= step:
                    self._prefill(each)
            waiting = [each for each in runs if each.handle >= 0 and not each.finished]
            if waiting:
                self._decode(waiting)
            for each in runs:
                if each.finished and each.handle in self.manager.open_handles:
                    self.manager.close(each.handle)
            step += 1
        return [each.trace() for each in runs]

    def _prefill(self, each: Run) -> None:
        request = each.request
        try:
            resolved = self.manager.resolve_params(each.params, request.prompt_len)
        except ParamError as error:
            raise ReplayError(str(error)) from error
        each.handle = self.manager.open(f"replay-{id(each)}", resolved)
        chunk = request.chunk or request.prompt_len
        while each.done < request.prompt_len:
            size = min(chunk, request.prompt_len - each.done)
            self._step([each], size, "prefill", prompt_done=each.done + size == request.prompt_len)

    def _decode(self, runs: list[Run]) -> None:
        for each in runs:
            each.steps += 1
        self._step(runs, 1, "decode", prompt_done=True)

    def _step(self, runs: list[Run], tokens: int, phase: Phase, prompt_done: bool) -> None:
        manager = self.manager
        manager.begin_step(StepBatch(tuple(r.handle for r in runs), tokens, phase, prompt_done, tuple(r.steps for r in runs)))
        self.recorder.begin()
        manager.missing = [max(0, each.request.q_start - each.done) for each in runs]
        for layer in range(self.layers):
            q, k, v = (torch.stack(parts) for parts in zip(*(tensors_of(each, layer, tokens) for each in runs)))
            out = manager.attend(layer, q, k, v, q.new_zeros(len(runs), tokens, 0))
            for row, each in enumerate(runs):
                keep_output(each, layer, out[row])
        manager.finish()
        ends = phase == "decode" or prompt_done
        if ends:
            residents = [manager.resident(layer) for layer in range(self.layers)]
            for row, each in enumerate(runs):
                blind = each.done + tokens <= each.request.q_start
                each.attended.append([self.recorder.read_by_last(layer, row, blind) for layer in range(self.layers)])
                self._note(each, row, residents)
        manager.commit_step()
        for row, each in enumerate(runs):
            if ends:
                self._note_stored(each)
            each.done += tokens

    def _note(self, each: Run, row: int, residents: list[Resident]) -> None:
        """What is known before the commit: rows that stay, states and lets."""
        each.kept.append([[head[head >= 0] for head in resident.pos[row]] for resident in residents])
        for name in each.request.record:
            values = [self._value(name, resident, row) for resident in residents]
            each.recorded.setdefault(name, []).append(values)

    def _value(self, name: str, resident: Resident, row: int) -> Recorded | None:
        """A state, summary, let or row count; stores come after the commit."""
        layout, (base, _, part) = self.manager.LAYOUT, name.partition(".")
        state = next((state for state in layout.states if state.name == name), None)
        if state is not None:
            if state.shared and name not in resident.step.shared_states:
                return None
            value = resident.shared(name) if state.shared else resident.state(name)
            return over_rows(value[row], state.letters, resident.pos[row], None)
        summary = next((summary for summary in layout.summaries if summary.name == name), None)
        if summary is not None:
            return Recorded(resident.summary(name)[row], ("h", "p", *summary.letters[2:]))
        if part == "rows" and base in self.manager.storage.zone_names:
            counts = [int(resident.zone_rows[base, which][row].max()) for which in PARTS]
            return Recorded(torch.tensor(counts), ("part",))
        return self.recorder.let(name, resident.layer, row)

    def _note_stored(self, each: Run) -> None:
        """Codes, scales and minima, which exist once the step is committed."""
        for name in each.request.record:
            base, _, part = name.partition(".")
            found = self._store(base)
            if found is not None:
                each.recorded[name][-1] = [self._codes(each, layer, *found, part) for layer in range(self.layers)]

    def _store(self, name: str) -> tuple[str, str] | None:
        """(zone, part) of a store's name."""
        for zone in self.compilation.plan.layout.zones:
            for part, codec in (("K", zone.key), ("V", zone.value)):
                if codec is not None and codec.store == name:
                    return zone.name, part
        return None

    def _codes(self, each: Run, layer: int, zone: str, part: str, which: str) -> Recorded | None:
        storage = self.manager.storage
        sequence = self.manager.sequence(each.handle)
        store = storage.stores[zone, part]
        assert isinstance(store, PackedStore), f"{zone} stores {part} raw"
        width = int(sequence.zone_rows[zone, part][layer].max())
        if width == 0:
            return None
        stored = store.stored(storage.addresses([sequence])[store.stream.name], layer, width)
        values = {"": stored.codes, "scale": stored.scale, "min": stored.minimum}[which]
        if values is None:
            return None
        places = each.kept[-1][layer]
        first = sum(int(sequence.zone_rows[name, part][layer].max()) for name in _older(storage.zone_names, zone))
        positions = torch.stack([head[first : first + width] for head in places])
        if which and store.codec.along == "t":
            positions = positions[:, :: store.codec.block]
        return Recorded(values[0], ("h", "t", "c"), positions)


def _older(zones: Sequence[str], zone: str) -> Iterator[str]:
    """Zones that hold older rows."""
    for name in zones:
        if name == zone:
            return
        yield name


def tensors_of(each: Run, layer: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [token, head, channel] of the step; queries before q_start are zeros, which no hook may see."""
    request, first = each.request, each.done
    k, v = request.k[layer, first : first + tokens], request.v[layer, first : first + tokens]
    q = request.q.new_zeros(tokens, *request.q.shape[2:])
    given = max(0, request.q_start - first)
    if given < tokens:
        start = first + given - request.q_start
        q[given:] = request.q[layer, start : start + tokens - given]
    return q, k, v


def keep_output(each: Run, layer: int, out: Tensor) -> None:
    """out [token, head * channel] or [token, head, channel] of the step's tokens from q_start on."""
    start = each.request.q_start
    rows = out.reshape(out.shape[0], *each.output.shape[2:]).float().cpu()
    skipped = max(0, start - each.done)
    if skipped < rows.shape[0]:
        at = each.done + skipped - start
        each.output[layer, at : at + rows.shape[0] - skipped] = rows[skipped:]


def _on_cpu(value: Recorded | None) -> Recorded | None:
    if value is None:
        return None
    return Recorded(value.values.cpu(), value.letters, None if value.positions is None else value.positions.cpu())


def _shape(request: ReplayRequest, tokens: int) -> ModelShape:
    """A model of the request's attention; what it would have beside that is as small as can be."""
    return ModelShape(
        "recorded", "llama", request.layers, request.q.shape[2], request.kv_heads, request.head_dim, hidden=16, intermediate=16, vocab=16,
        max_positions=tokens, rope_theta=1.0, rms_eps=1e-6, tied=True, qk_norm=False, attention_bias=False, dtype="float32",
        scale=request.head_dim**-0.5,
    )  # fmt: skip


def _unturned(channels: int) -> Rope:
    """A rotation by nothing: the recorded keys and queries are rotated already."""
    return Rope(torch.zeros(channels // 2))


def _refuse_rotated(compilation: Compilation, request: ReplayRequest) -> None:
    needs = compilation.facts.positions.value == "rank" or any(
        isinstance(node, t.Ref) and node.name.text in ("K_raw", "KV_raw")
        for item in compilation.special.method.items
        if not isinstance(item, t.Zone)  # a zone that decodes K at pos rotates nothing anew
        for node in t.walk(item)
    )
    if request.rotated and needs:
        raise ReplayError(
            f"{compilation.name} reads K before RoPE, but k is given rotated; give q and k before RoPE with rotated=False and rope=..."
        )
