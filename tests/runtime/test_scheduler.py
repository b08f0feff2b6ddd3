"""Queues, turns and budgets of the scheduler, without a model."""

from __future__ import annotations

from sparsec_runtime.request import Request, Status
from sparsec_runtime.sampler import SamplingParams
from sparsec_runtime.scheduler import Scheduler


def request(name: str, prompt: int, reserved: int = 1, computed: int = 0) -> Request:
    made = Request(name, tuple(range(prompt)), SamplingParams(), {})
    made.reserved, made.computed = reserved, computed
    return made


def scheduler_with(*requests: Request, chunk: int = 8, budget: int = 16) -> Scheduler:
    scheduler = Scheduler(chunk, budget, max_running=8)
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
    scheduler = Scheduler(8, 16, max_running=8)
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
