"""Methods whose counts depend on tensors: the host plans by bounds, what is held follows the device."""

from __future__ import annotations

import pytest
from engines import ids_of, prompt, tiny_model
from sparsec_runtime.engine import Engine
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.sampler import SamplingParams

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

SCORE = """  state score[t, h]: f32 = 0
  on after_prefill_attention, after_decode_attention { score[t, h] += sum[i, g](probs[i, h, g, t]) }
"""
SPECS = {
    "nucleus": SCORE + "  on end_of_prompt, finish_step { evict keep recent(4) | nucleus[t](score[t, h], 0.4 * sum[t](score[t, h])) }",
    "guard": SCORE + """  on end_of_prompt, finish_step when len > 16 and max[t, h](score[t, h]) > 24.0 {
    evict keep recent(4) then top[t](score[t, h]) upto 12
  }""",
    "guard_then_count": SCORE + """  on end_of_prompt when max[t, h](score[t, h]) > 24.0 { evict keep recent(4) then top[t](score[t, h]) upto 12 }
  on finish_step when len > 40 { evict keep recent(8) }""",
    "move": """  zone tail
  zone old { store kq[t, h, c]: int(8, along = c, block = 8, zero = true) = K[t, h, c]
    store vq[t, h, c]: int(8, along = c, block = 8, zero = true) = V[t, h, c]
    decode K[t, h, c] = kq[t, h, c]
    decode V[t, h, c] = vq[t, h, c] }
  on end_of_prompt, finish_step when max[t, h, c](K[t, h, c]) > 0.0 { move tail - recent(6) to old }""",
    "move_some": """  zone tail
  zone old { store kq[t, h, c]: int(8, along = c, block = 8, zero = true) = K[t, h, c]
    store vq[t, h, c]: int(8, along = c, block = 8, zero = true) = V[t, h, c]
    decode K[t, h, c] = kq[t, h, c]
    decode V[t, h, c] = vq[t, h, c] }
  on end_of_prompt, finish_step { move (tail - recent(6)) & oldest(len // 2) to old }""",
}  # fmt: skip
LENGTHS = (50, 3, 37, 18)


@pytest.fixture(params=SPECS)
def method(request, tmp_path):
    path = tmp_path / "uncertain.sparse"
    path.write_text(f"sparse 1\nmethod uncertain {{\n{SPECS[request.param]}\n}}\n")
    return load_manager(Compilation.load(str(path), model=from_shape(tiny_model().shape)))


def run(method, prompts: list[list[int]]) -> list[list[int]]:
    made = Engine(method, tiny_model(), EngineOptions(chunk=16, memory_tokens=1024))
    names = [made.add_request(tokens, SamplingParams(max_tokens=14, ignore_eos=True)) for tokens in prompts]
    outputs = {name: [] for name in names}
    while made.busy:
        for output in made.step():
            outputs[output.request_id].append(output)
        check_accounting(made)
    assert all(outputs[name][-1].error is None for name in names), [outputs[name][-1].error for name in names]
    assert made.stats().pages.live == 0
    return [ids_of(outputs[name]) for name in names]


def check_accounting(made: Engine) -> None:
    """Pages held are those that the rows on the device need: no more, and no fewer."""
    storage = made.manager.storage
    pages = made.stats().pages
    assert pages.free + pages.live + pages.cached == pages.total
    for request in made.scheduler.running:
        sequence = made.manager.sequence(request.handle)
        for name, stream in storage.streams.items():
            rows = [counts for key, counts in sequence.zone_rows.items() if storage.stream_of(*key).name == name]
            rows += [sequence.rows] if name == storage.row_stream.name else []
            wanted = max(int(stream.pages_wanted(counts).sum()) for counts in rows)
            assert int(sequence.tables[name].used.sum()) == wanted, f"stream '{name}' of {request.request_id}"
        held = made.manager.bytes(request.handle)
        assert 0 <= held.kv <= held.peak
        assert sum(int(table.used.sum()) for table in sequence.tables.values()) <= request.reserved * len(storage.streams)


def test_a_batch_equals_single_requests_and_no_page_is_lost(method):
    prompts = [prompt(length, seed=n) for n, length in enumerate(LENGTHS)]
    assert run(method, prompts) == [run(method, [tokens])[0] for tokens in prompts]
