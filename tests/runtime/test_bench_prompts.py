"""Prompts that the bench computes: the same code as on a device, on a tiny model, but for the clock."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from sparsec.bench import decode, prefill
from sparsec.bench.record import text_of
from sparsec.bench.workload import Workload
from sparsec_runtime.models.loading import load_model


class Mark:
    """Of a device on which every chunk takes 2 ms."""

    def __init__(self, at: int) -> None:
        self.at = at

    def elapsed_time(self, other: Mark) -> float:
        return 2.0 * (other.at - self.at)


@pytest.fixture(scope="module")
def model():
    return load_model("tiny-llama", load_format="dummy", dtype="float32")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    numbers = itertools.count()
    monkeypatch.setattr(prefill.PrefillBench, "_mark", lambda self: Mark(next(numbers)))
    monkeypatch.setattr(prefill, "matmul_tflops", lambda device: 1.0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2**30)


@pytest.mark.parametrize(("method", "params"), [("dense", {}), ("snapkv", {"budget": "40"}), ("kivi", {"block": "16", "residual": "16"})])
def test_a_batch_of_prompts_stays_resident_until_the_last_ones_end(model, monkeypatch, method, params):
    bench = prefill.PrefillBench(Workload(method, params, context=100, batch=3, fill="prompt", chunk=32), model)
    done, close = [], bench.manager.close
    monkeypatch.setattr(bench.manager, "close", lambda handle: done.append(bench._drawn) or close(handle))
    bench.prompts([100] * 3)
    assert done == [3, 3, 3]
    found = bench.prompts([100, 50, 7])
    assert [[(chunk.start, chunk.tokens) for chunk in prompt] for prompt in found] == [
        [(0, 32), (32, 32), (64, 32), (96, 4)], [(0, 32), (32, 18)], [(0, 7)],
    ]  # fmt: skip
    assert {chunk.milliseconds for prompt in found for chunk in prompt} == {2.0}
    assert bench.manager.pages().live == 0 and bench.kv_bytes > 0


def test_a_row_of_prompts_tells_its_floor_its_share_and_its_peak(model):
    work = Workload("dense", context=100, batch=2, fill="prompt", chunk=32, repetitions=3)
    measured = prefill.measure_prefill(work, model, lengths=2)
    flops = prefill.useful_flops(model.shape, 100)
    assert measured["each"] == (8.0,) * 6 and measured["tok_s"] == 12500.0
    assert measured["floor_ms"] == round(flops / 1e9, 3) and measured["share"] == round(flops / 1e9 / 8, 3)
    text = text_of({**work.named("prefill", "tiny-llama", "a"), **measured})
    assert "batch 2: 12500 tok/s" in text and f"floor {measured['floor_ms']:.0f} ms" in text and f"{measured['share']:.1%} of that rate" in text
    assert "1.0 GiB at the peak" in text and len(text.splitlines()) == 1 + 3


@pytest.mark.parametrize("prompts", [0, 1, 2])
def test_a_row_of_decode_tells_the_time_of_the_prompts_that_it_computes(model, monkeypatch, prompts):
    """By a clock that shows a second more at every look: two at prompts, two at the window and two at each of its steps."""
    monkeypatch.setattr(decode, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    monkeypatch.setattr(decode.DecodeBench, "profile", lambda self: decode.Profile((("begin_step", 1, 2.0),), 0.004, 100.0))
    monkeypatch.setattr(decode.DecodeBench, "_step", lambda self, handles, step, ids: steps.append(ids))
    computed, steps = [], []
    monkeypatch.setattr(decode, "prefill", lambda *args: computed.append(len(args[3])) or prefill.prefill(*args))
    fill = "prompt" if prompts else "synthetic"
    work = Workload("snapkv", {"budget": "40"}, context=60, batch=2, fill=fill, chunk=32, warm_up=1, steps=4, repetitions=3)
    measured = decode.DecodeBench(work, model, prompts=prompts).measure().fields()
    assert computed == [60] * (min(1, prompts) + 3 * prompts), "a prompt of the discarded workload, and those of each repetition"
    assert measured["each"] == (9 / 4 * 1e3,) * 3 and measured["host_ms"] == 1000.0
    assert len(steps) == 4 * (1 + 4) and [len(ids) for ids in steps if ids is not None] == [2] * 4, "only the first step of a window is given ids"
    told = {name: measured.get(name) for name in ("prefill_ms", "prefill_tok_s", "end_to_end_s")}
    assert told == [
        {"prefill_ms": None, "prefill_tok_s": None, "end_to_end_s": None}, {"prefill_ms": 1000.0, "prefill_tok_s": 60.0, "end_to_end_s": None},
        {"prefill_ms": 500.0, "prefill_tok_s": 120.0, "end_to_end_s": 11},
    ][prompts]  # fmt: skip
    text = text_of({**work.named("decode", "tiny-llama", "a"), **measured})
    assert ("a prompt 500 ms, 120 tok/s; prompts, warm-up and window 11.00 s" in text) == (prompts == 2)
    assert ("tok/s; prompts" in text, "a prompt" in text) == (prompts == 2, prompts > 0)
