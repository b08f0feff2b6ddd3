"""Gates of kernels: their definitions, how they are judged, and the arithmetic behind them. Nothing is timed here."""

from __future__ import annotations

import pytest
import torch
from sparsec.bench.ceiling import launch_copy, launch_sums
from sparsec.bench.gates import Gate, Measurement, aligned, gates_of, markdown, shipped_gates, spread_evenly
from sparsec.cli import main
from sparsec.dsl.source import load_source

GATES = {gate.name: gate for gate in shipped_gates()}


def test_every_gate_names_a_method_that_exists_and_kernels_where_it_needs_them():
    for gate in GATES.values():
        for one in (gate.of, gate.beside):
            if one is not None:
                load_source(one.work.method)
                assert one.kernels or gate.how in ("step", "idle", "move", "prefill", "chunks", "gap", "loss"), gate.name
        assert (gate.beside is not None) == (gate.how in ("ratio", "step", "gap", "loss")), gate.name
        assert bool(gate.sizes) == (gate.how in ("rank", "sample", "move", "column", "window")), gate.name


def test_gates_of_sampling_ask_for_what_the_sampler_knows():
    from sparsec_runtime.sampler import SamplingParams

    asked = {gate.target: SamplingParams(**gate.sampling) for gate in GATES.values() if gate.how == "sample"}
    assert asked[40].plain
    assert (asked[150].greedy, asked[150].top_k, asked[150].top_p) == (False, 50, 0.9)
    assert all(gate.how == "sample" for gate in GATES.values() if gate.sampling)


def test_rows_of_different_lengths_are_listed():
    assert GATES["mixed lengths: one row of 128K, 15 of 2K"].of.contexts == (131072,) + (2048,) * 15
    spread = GATES["mixed lengths: 64 rows log-uniform in 128..32K"].of
    assert (len(spread.contexts), spread.contexts[0], spread.contexts[-1], spread.work.batch) == (64, 128, 32768, 64)
    assert spread_evenly(1, 16, 5) == (1, 2, 4, 8, 16)


@pytest.mark.parametrize(("how", "measured", "met"), [("ceiling", 0.96, True), ("ceiling", 0.94, False), ("layer", 0.94, True), ("layer", 0.96, False)])
def test_a_share_must_be_reached_and_a_time_must_not_be_passed(how, measured, met):
    (gate,) = gates_of(f'[[gate]]\nname = "a"\nhow = "{how}"\ntarget = 0.95\n')
    assert gate.judged(measured)["met"] is met


def test_a_gate_twice_or_measured_in_no_known_way_is_refused():
    text = '[[gate]]\nname = "a"\nhow = "layer"\ntarget = 1\n'
    with pytest.raises(AssertionError, match="twice"):
        gates_of(text + text)
    with pytest.raises(AssertionError, match="no way"):
        gates_of(text.replace("layer", "guess"))


def test_the_table_of_gates_says_what_was_not_measured():
    gate = GATES["merge of splits, 8 x 8K"]
    assert "| <= 3 | 2.5 | yes |" in markdown([gate], {gate.name: gate.judged(2.5)})
    assert "| <= 3 | - | no graph |" in markdown([gate], {gate.name: {"error": "no graph"}})
    assert "| <= 3 | - | not measured |" in markdown([gate], {})


def test_gates_for_a_terminal_stand_in_columns_with_their_units():
    gates = [GATES["merge of splits, 8 x 8K"], GATES["dense paged decode, 8 x 32K"], GATES["projections, 1 row"]]
    text = aligned(gates, {gates[0].name: gates[0].judged(2.5), gates[1].name: {"error": "no graph"}}).splitlines()
    assert [line.split("  ")[-1].strip() for line in text] == ["met", "yes", "no graph", "not measured"]
    assert text[1].split()[-6:] == ["3", "2.5", "us", "a", "layer", "yes"] and "of the ceiling" in text[2] and "TB/s" in text[3]
    assert len({line.index(unit) for line, unit in zip(text, ("unit", "us a layer", "of the ceiling", "TB/s"))}) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_gates_are_not_measured(capsys, tmp_path):
    assert main(["bench", "kernels", "--only", "merge", "--out", str(tmp_path / "rows.jsonl")]) == 3
    assert "CUDA" in capsys.readouterr().err


def test_bandwidth_kernels_move_what_they_say():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.arange(20_000, dtype=torch.int32, device=device)
    target, sums = torch.zeros_like(source), torch.zeros(3, dtype=torch.int32, device=device)
    launch_copy(source, target)
    launch_sums(source, sums)
    assert torch.equal(source, target)
    assert sums.tolist() == [int(part.sum()) for part in source.split(8192)]


def test_idle_time_between_steps_leaves_out_copies():
    from sparsec.bench.decode import idle_between

    step = [("begin_step", 0.0, 5.0), ("attend", 6.0, 90.0), ("Memcpy HtoD", 100.0, 103.0)]
    busy = [(name, start + 110.0 * n, end + 110.0 * n) for n in range(4) for name, start, end in step]
    assert idle_between(busy, "begin_step") == pytest.approx((100 - 90) + (110 - 103))
    assert idle_between(busy[:3], "begin_step") == 0.0


def test_the_gate_of_moves_moves_what_belongs_to_the_rows_of_a_resident(monkeypatch):
    """The same code as on a device, on a tiny model, but for the clock."""
    from sparsec.bench import kernels
    from sparsec.bench.workload import Workload
    from sparsec_runtime.gpu.compact import move_to_front
    from sparsec_runtime.models.loading import load_model

    changed: list[bool] = []

    def moved(arrays, *args):
        before = [array.data.clone() for array in arrays]
        move_to_front(arrays, *args)
        changed.extend(not torch.equal(array.data, old) for array, old in zip(arrays, before))

    monkeypatch.setattr(kernels, "move_to_front", moved)
    monkeypatch.setattr(kernels, "seconds", lambda run: run() or 0.0)
    work = Workload("h2o", {"budget": "1000", "recent": "8"}, context=60, batch=1, warm_up=1, steps=4)
    gate = Gate("moves", "move", 1.0, Measurement(work), sizes={"kept": 16})
    kernels.GateBench(load_model("tiny-llama", load_format="dummy", dtype="float32"))._move(gate)
    assert changed == [True] * 4, "K, V, positions and the state"


def test_the_gate_of_a_window_times_what_hooks_are_given(monkeypatch):
    from sparsec.bench import scoring
    from sparsec_runtime.models.loading import load_model

    model, given = load_model("tiny-llama", load_format="dummy", dtype="float32"), []
    monkeypatch.setattr(scoring, "replayed_seconds", lambda run: given.append(run()) or 0.0)
    scoring.RandomChunk.of(model, 32, 100).window_seconds(8)
    assert given[0].shape == (1, model.shape.kv_heads, 100)
    assert torch.allclose(given[0].sum(-1), torch.full((1, model.shape.kv_heads), 8.0)), "the probs of a query sum up to one"


def test_the_gates_of_waiting_run_an_engine_with_requests_that_decode_beside_a_prompt():
    """The same code as on a device, on a tiny model."""
    from sparsec.bench.gap import GapBench
    from sparsec.bench.workload import Workload
    from sparsec_runtime.models.loading import load_model

    bench = GapBench(
        Workload("snapkv", {"budget": "40"}, context=200, batch=1, chunk=64), Workload("snapkv", {"budget": "40"}, context=30, batch=3, chunk=64),
        load_model("tiny-llama", load_format="dummy", dtype="float32"),
    )  # fmt: skip
    found = bench.measure()
    assert found.steps == 4, "one chunk a step"
    assert found.gap_ms > 0 and found.loss == found.prompt_ms / found.alone_ms > 0
    stats = bench.engine.stats()
    assert not bench.engine.busy and stats.pages.live == 0 and stats.finished["abort"] == 3 and stats.preemptions == 0


def test_a_request_that_got_no_token_meanwhile_waited_for_all_of_the_prompt():
    from sparsec.bench.gap import GapBench
    from sparsec.bench.workload import Workload
    from sparsec_runtime.models.loading import load_model

    bench = GapBench(Workload("dense", context=200, chunk=64), Workload("dense", context=30, batch=2, chunk=64), load_model("tiny-llama", load_format="dummy", dtype="float32"))
    names = bench._decoding_requests()
    bench.engine._decode = lambda requests: []
    gap, prompt, steps = bench._prompt_beside(names)
    assert gap >= prompt > 0 and steps == 4


def test_ragged_heads_hold_as_many_rows_as_even_ones_and_decode():
    from sparsec.bench.decode import DecodeBench
    from sparsec.bench.synthetic import ragged_rows
    from sparsec.bench.workload import Workload
    from sparsec_runtime.models.loading import load_model

    assert ragged_rows(8192, 8, 10.0).sum() == 8 * 8192 and ragged_rows(8192, 8, 10.0)[[0, -1]].tolist() == [1979, 19800]
    assert ragged_rows(10, 1, 10.0).tolist() == [10] and ragged_rows(9, 3, 1.0).tolist() == [9, 9, 9]
    work = Workload("ada_snapkv", {"budget": "40", "window": "8"}, context=100, batch=2, warm_up=1, steps=8)
    model = load_model("tiny-llama", load_format="dummy", dtype="float32")
    bench = DecodeBench(work, model, ragged=10.0)
    with bench.resident() as handles:
        rows = bench.manager.rows(handles[0])
        assert (rows.sum(1) == 40 * model.shape.kv_heads).all() and (rows.max(1) >= 9 * rows.min(1)).all()
        assert set(rows.argmax(1)) == set(range(model.shape.kv_heads)), "which head is the longest differs"
        bench.steps(handles, 2)
        assert (bench.manager.rows(handles[0]) == rows + 2).all()
        assert torch.isfinite(bench.graphs.buffers_of(2).attended).all()
    with DecodeBench(work, model).resident() as handles:
        assert len(handles) == 2
    assert DecodeBench(work, model).ragged == 2 and DecodeBench(Workload("snapkv", {"budget": "40"}, context=100, batch=1), model).ragged == 1
    with pytest.raises(AssertionError, match="equal counts"), DecodeBench(Workload("dense", context=20, batch=1, warm_up=1, steps=2), model, ragged=2.0).resident():
        pass


def test_only_the_gate_of_ragged_heads_has_them():
    ragged = [gate.of for gate in GATES.values() if gate.of is not None and gate.of.ragged is not None]
    assert [(of.ragged, of.work.method, of.work.batch) for of in ragged] == [(10.0, "ada_snapkv", 8)]
