"""Measures gates: kernels of a captured step over the real model's layers, whose pools and weights are distinct, by the device's own clock."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import cached_property

import torch
from sparsec_runtime.gpu.compact import move_to_front, row_arrays
from sparsec_runtime.gpu.ranking import rank_best
from sparsec_runtime.models.loading import LoadedModel

from sparsec.bench.ceiling import ceiling, replayed_seconds, seconds
from sparsec.bench.decode import DecodeBench, Profile
from sparsec.bench.draws import draw_seconds, random_logits
from sparsec.bench.gap import GapBench, Interleaved
from sparsec.bench.gates import Gate, Measurement
from sparsec.bench.prefill import measure_prefill
from sparsec.bench.scoring import RandomChunk
from sparsec.bench.workload import Workload
from sparsec.model_facts import from_shape

RANDOM_LENGTHS = 50


class GateBench:
    """One model and one machine; a workload that several gates share is profiled once."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self._profiles: dict[str, Profile] = {}
        self._interleaved: dict[str, Interleaved] = {}

    def measure(self, gate: Gate) -> dict[str, object]:
        gc.collect()  # of the gate before, whether it could be measured or not
        torch.cuda.empty_cache()
        found = getattr(self, f"_{gate.how}")(gate)
        return {**gate.judged(found), "ceiling_tb_s": {name: round(rate / 1e12, 3) for name, rate in self.ceiling.items()}}

    @cached_property
    def ceiling(self) -> dict[str, float]:
        """Bytes per second, measured before anything else of the run."""
        found = ceiling(self.model.device)
        torch.cuda.empty_cache()
        return found

    # ---- ways to measure, by the name that a gate gives them ------------------------------------

    def _ceiling(self, gate: Gate) -> float:
        return self._bytes(gate.of) / self._layer_seconds(gate.of) / self.ceiling["best"]

    def _layer(self, gate: Gate) -> float:
        return self._layer_seconds(gate.of) * 1e6

    def _excess(self, gate: Gate) -> float:
        return self._layer_seconds(gate.of) / (1.25 * self._bytes(gate.of) / self.ceiling["best"] + 15e-6)

    def _ratio(self, gate: Gate) -> float:
        return self._layer_seconds(gate.of) / self._layer_seconds(gate.beside)

    def _step(self, gate: Gate) -> float:
        slow, fast = (DecodeBench(one.work, self.model).measure().ms_per_step for one in (gate.of, gate.beside))
        return (slow - fast) * 1e3 / self.model.shape.layers

    def _idle(self, gate: Gate) -> float:
        return self._profile(gate.of).idle_ms

    def _projections(self, gate: Gate) -> float:
        return from_shape(self.model.shape).read_bytes / (self._layer_seconds(gate.of) * self.model.shape.layers) / 1e12

    def _prefill(self, gate: Gate) -> float:
        return float(measure_prefill(gate.of.work, self.model)["share"])

    def _chunks(self, gate: Gate) -> float:
        return float(measure_prefill(gate.of.work, self.model, RANDOM_LENGTHS)["worst_ratio"])

    def _gap(self, gate: Gate) -> float:
        return self._beside(gate).gap_ms

    def _loss(self, gate: Gate) -> float:
        return self._beside(gate).loss

    def _move(self, gate: Gate) -> float:
        """Of rows that stay chosen at random: that the rule ranks them first is what `rank` measures."""
        bench = DecodeBench(_short(gate.of.work), self.model)
        with bench.resident() as handles:
            bench.steps(handles, 2)
            storage, table = bench.manager.storage, bench.graphs.buffers_of(len(handles)).table
            shape, held, kept = (storage.layers, len(handles) * storage.heads), gate.of.work.context, gate.sizes["kept"]
            source = torch.rand((*shape, held), device=storage.device).topk(kept).indices.sort(-1).values.to(torch.int32)
            count = torch.full((len(handles),), kept, dtype=torch.int32, device=storage.device)
            return seconds(lambda: move_to_front(row_arrays(storage), storage.heads, table, source, count)) * 1e3

    def _rank(self, gate: Gate) -> float:
        lines, entries, best = (gate.sizes[name] for name in ("lines", "entries", "best"))
        heads, device = self.model.shape.kv_heads, self.model.device
        rows = lines // heads
        score = torch.rand((rows, heads, entries), device=device)
        held, count = (torch.full((rows,), n, dtype=torch.int32, device=device) for n in (entries, best))
        out = torch.empty((rows, heads, best), dtype=torch.int32, device=device)
        return replayed_seconds(lambda: rank_best(score, held, count, out)) * 1e6

    def _sample(self, gate: Gate) -> float:
        logits = random_logits(gate.sizes["rows"], gate.sizes["vocab"], self.model.device)
        return draw_seconds(logits, gate.sampling) * 1e6

    def _column(self, gate: Gate) -> float:
        chunk = RandomChunk.of(self.model, gate.sizes["queries"], gate.sizes["tokens"])
        return chunk.mass_seconds() / chunk.attention_seconds()

    def _window(self, gate: Gate) -> float:
        chunk = RandomChunk.of(self.model, gate.sizes["queries"], gate.sizes["tokens"])
        return chunk.window_seconds(gate.sizes["window"]) / chunk.attention_seconds()

    # ---- what they are made of ------------------------------------------------------------------

    def _layer_seconds(self, of: Measurement) -> float:
        """Of the measurement's kernels in one layer of a step."""
        found = [row for row in self._profile(of).kernels if row[0].startswith(of.kernels)]
        assert found, f"{of.work}: no kernel of the step is called {' or '.join(of.kernels)}"
        return sum(microseconds for _, _, microseconds in found) / self.model.shape.layers * 1e-6

    def _profile(self, of: Measurement) -> Profile:
        key = f"{of.work} {of.contexts} {of.ragged}"
        if key not in self._profiles:
            self._profiles[key] = DecodeBench(_short(of.work), self.model, contexts=of.contexts, ragged=of.ragged).profile()
            gc.collect()
            torch.cuda.empty_cache()
        return self._profiles[key]

    def _beside(self, gate: Gate) -> Interleaved:
        key = f"{gate.of.work} beside {gate.beside.work}"
        if key not in self._interleaved:
            self._interleaved[key] = GapBench(gate.of.work, gate.beside.work, self.model).measure()
        return self._interleaved[key]

    def _bytes(self, of: Measurement) -> float:
        """K and V of all rows that one layer holds, on average, raw."""
        shape = self.model.shape
        return self._profile(of).held * 2 * shape.kv_heads * shape.head_dim * self.model.dtype.itemsize


def _short(work: Workload) -> Workload:
    return replace(work, warm_up=8, steps=32)
