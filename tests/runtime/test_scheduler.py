"""Queues, turns and budgets of the scheduler, without a model."""

from __future__ import annotations

import math

import pytest
from sparsec_runtime import chunks
from sparsec_runtime.chunks import ChunkSizes, chunk_sizes
from sparsec_runtime.models.shape import resolve_shape
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.request import Request, Status
from sparsec_runtime.sampler import SamplingParams
from sparsec_runtime.scheduler import Scheduler


def request(name: str, prompt: int, reserved: int = 1, computed: int = 0) -> Request:
    made = Request(name, tuple(range(prompt)), SamplingParams(), {})
    made.reserved, made.computed = reserved, computed
    return made


def scheduler_with(*requests: Request, chunk: int = 8, budget: int = 16, sizes: ChunkSizes | None = None) -> Scheduler:
    scheduler = Scheduler(sizes or ChunkSizes(chunk), budget, max_running=16)
    for entry in requests:
        scheduler.add(entry)
    scheduler.admit(10**6)
    return scheduler


def spans(plan) -> list[tuple[str, int, int]]:
    return [(c.request.request_id, c.start, c.end) for c in plan.chunks]


def test_every_decode_row_runs_in_every_step():
    decoding = [request(f"d{n}", 4, computed=4) for n in range(5)]
    plan = scheduler_with(*decoding, request("long", 100), budget=4).plan()
    assert [r.request_id for r in plan.decodes] == ["d0", "d1", "d2", "d3", "d4"]


def test_a_chunk_is_never_cut_to_the_leftover_budget():
    plan = scheduler_with(request("a", 20), chunk=8, budget=13).plan()
    assert spans(plan) == [("a", 0, 8)]


def test_one_chunk_runs_even_when_decodes_have_used_the_budget():
    decoding = [request(f"d{n}", 4, computed=4) for n in range(7)]
    plan = scheduler_with(*decoding, request("a", 20), chunk=8, budget=7).plan()
    assert spans(plan) == [("a", 0, 8)]


def test_chunk_boundaries_do_not_depend_on_batch_mates():
    alone = scheduler_with(request("a", 20), budget=100).plan()
    mixed = scheduler_with(request("b", 5), request("a", 20), budget=100).plan()
    assert [s for s in spans(mixed) if s[0] == "a"] == spans(alone) == [("a", 0, 8), ("a", 8, 16), ("a", 16, 20)]


def test_a_short_prompt_gets_a_turn_beside_a_long_one():
    plan = scheduler_with(request("long", 1000), request("short", 8), chunk=8, budget=16).plan()
    assert ("short", 0, 8) in spans(plan)


def test_nobody_overtakes_a_large_request_at_the_head_of_the_queue():
    scheduler = Scheduler(ChunkSizes(8), 16, max_running=8)
    large, small = request("large", 100, reserved=50), request("small", 5, reserved=1)
    scheduler.add(large)
    scheduler.add(small)
    assert scheduler.admit(free_reserve=10) == []
    assert scheduler.admit(free_reserve=51) == [large, small]


def test_a_preempted_request_takes_its_old_place_again():
    first, second, third = (request(name, 5, reserved=5) for name in ("first", "second", "third"))
    scheduler = scheduler_with(first, second)
    scheduler.remove(second)
    second.restart()
    scheduler.add(third)
    scheduler.add(second)
    assert [r.request_id for r in scheduler.waiting] == ["second", "third"]
    assert second.status is Status.WAITING and second.preemptions == 1


def test_the_oldest_running_request_is_never_the_victim():
    first, second = request("first", 5), request("second", 5)
    assert scheduler_with(first, second).victim() is second
    assert scheduler_with(request("only", 5)).victim() is None


# ---- chunks by what they cost --------------------------------------------------------------------

LLAMA = resolve_shape("llama-3.1-8b-49k")
INVARIANT, DEPENDENT = ({"chunks": {"value": value}} for value in ("derived", "no"))


def sizes_of(facts=INVARIANT, **options) -> ChunkSizes:
    return chunk_sizes(facts, LLAMA, EngineOptions(**{"chunk": 8192, **options}))


def cut(sizes: ChunkSizes, prompt: int) -> list[tuple[int, int]]:
    """(start, tokens) of its chunks."""
    found, start = [], 0
    while start < prompt:
        end = sizes.end_of(start, prompt)
        found.append((start, end - start))
        start = end
    return found


def test_chunks_of_a_long_prompt_are_halved_as_its_context_grows():
    found = cut(sizes_of(), 131_072)
    assert [(size, min(start for start, other in found if other == size)) for size in (8192, 4096, 2048)] == [(8192, 0), (4096, 16_384), (2048, 57_344)]
    assert sum(size for _, size in found) == 131_072 and len(found) == 2 + 10 + 36


def test_no_chunk_costs_more_than_the_limit_and_none_could_be_twice_as_long():
    sizes = sizes_of()
    for start, size in cut(sizes, 131_072):
        assert sizes.work(start, start + size) <= 180e12
        assert size == 8192 or sizes.work(start, start + 2 * size) > 180e12


def test_the_work_of_a_chunk_is_that_of_its_products_and_of_the_causal_half_of_its_attention():
    from sparsec.bench.prefill import useful_flops

    sizes = sizes_of()
    head = 2 * LLAMA.vocab * LLAMA.hidden  # of the last token alone
    assert sizes.work(0, 5000) == useful_flops(LLAMA, 5000) - head
    assert sizes.work(0, 3000) + sizes.work(3000, 5000) == sizes.work(0, 5000)


@pytest.mark.parametrize(("facts", "options"), [(DEPENDENT, {}), ({}, {}), (INVARIANT, {"max_running": 1}), (INVARIANT, {"chunk_tflop": math.inf})])
def test_chunks_are_whole_where_their_size_is_part_of_the_result_or_nobody_waits(facts, options):
    sizes = sizes_of(facts, **options)
    assert {size for _, size in cut(sizes, 131_072)} == {8192}
    assert sizes.shorter(131_072) == ()


def test_shorter_sizes_are_those_that_occur_and_never_below_the_least():
    assert sizes_of().shorter(131_072) == (4096, 2048) and sizes_of().shorter(200_000) == (4096, 2048, 1024) and sizes_of().shorter(8192) == ()
    assert sizes_of().shorter(57_344) == (4096,) and sizes_of().shorter(57_345) == (4096, 2048)
    assert sizes_of(chunk_tflop=1e-3).shorter(131_072) == (chunks.LEAST_CHUNK,)
    assert sizes_of(chunk=512, chunk_tflop=1e-3).shorter(131_072) == (), "the default chunk is as short as any becomes"
    assert sizes_of(chunk=3000, chunk_tflop=1e-3).shorter(131_072) == (750,)


@pytest.mark.parametrize("start", [0, 16_384, 53_248, 120_832])
def test_who_decodes_never_moves_where_a_chunk_ends(start):
    sizes, found = sizes_of(), []
    for mates in (0, 3, 12):
        decoding = [request(f"d{n}", 4, computed=4) for n in range(mates)]
        found.append(spans(scheduler_with(*decoding, request("long", 131_072, computed=start), sizes=sizes, budget=2048).plan()))
    assert found[0] == found[1] == found[2] == [("long", start, start + sizes.size_at(start))]


def test_chunks_of_a_step_share_one_limit_while_rows_decode_and_the_token_budget_alone_otherwise():
    sizes = sizes_of()
    prompts = [request(f"p{n}", 4096) for n in range(4)]
    busy = scheduler_with(request("d", 4, computed=4), *prompts, sizes=sizes, budget=1 << 20).plan()
    idle = scheduler_with(*prompts, sizes=sizes, budget=1 << 20).plan()
    assert len(idle.chunks) == 4 and len(busy.chunks) == 2
    assert sum(sizes.work(chunk.start, chunk.end) for chunk in busy.chunks) <= 180e12 < 4 * sizes.work(0, 4096)


def test_a_prompt_that_is_read_again_has_its_chunks_again():
    scheduler = scheduler_with(request("long", 20_000), sizes=sizes_of())
    (long,), ends = scheduler.running, []
    for _ in range(2):
        while long.prefilling:
            (chunk,) = scheduler.plan().chunks
            assert chunk.due
            long.computed = chunk.end
            ends.append(chunk.end)
        assert not chunk.due
        long.restart()
        scheduler.remove(long)
        scheduler.add(long)
        scheduler.admit(10**6)
    assert ends == 2 * [8192, 16_384, 20_000]
