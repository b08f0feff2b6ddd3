"""Whatever happened before on the same machine, a sequence gives the same bits: after preemption, on other pages, after other requests."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparsec.verify.case import Case
from sparsec.verify.compare import first_difference
from sparsec.verify.machine import Feed, Machine
from sparsec.verify.property import Found, Property, Violation
from sparsec.verify.traces import Inputs

Scene = Callable[[Case, Machine, Inputs], Feed]


def _same_bits(scene: Scene, words: str) -> Callable[[Case], Found]:
    """The check that a scene's run equals the run on a fresh machine, bit by bit."""

    def check(case: Case) -> Found:
        for inputs in case.traces:
            alone = case.torch(inputs)
            feed = case.guarded("torch", inputs, lambda: scene(case, case.machine(), inputs))
            found = first_difference(alone.steps, feed.steps, tolerance=0)
            if found is not None:
                message = f"{words}: {found.what}"
                yield Violation(message, inputs, found.step, found.layer, found.head, case.line_of(found))

    return check


def _preempted(case: Case, machine: Machine, inputs: Inputs) -> Feed:
    """Half the decode steps, then everything is dropped, another sequence comes, and all tokens are fed again."""
    feed = machine.open(inputs, case.request_params)
    machine.prefill(feed)
    for _ in range(inputs.new // 2):
        machine.decode([feed])
    machine.close(feed)
    other = machine.open(case.traces[-1], case.request_params)
    machine.prefill(other)
    again = machine.open(inputs, case.request_params)
    machine.finish(again)
    machine.close(again)
    machine.close(other)
    return again


def _on_other_pages(case: Case, machine: Machine, inputs: Inputs) -> Feed:
    """Guests take pages before and between, and give them back out of order: the sequence's own pages are scattered."""
    guests = [machine.open(case.traces[-1], case.request_params) for _ in range(3)]
    for guest in guests:
        machine.prefill(guest)
    machine.close(guests[1])
    feed = machine.open(inputs, case.request_params)
    machine.prefill(feed)
    machine.close(guests[0])
    late = machine.open(case.traces[0], case.request_params)
    machine.prefill(late)
    machine.finish(feed)
    for one in (late, guests[2], feed):
        machine.close(one)
    return feed


def _after_another(case: Case, machine: Machine, inputs: Inputs) -> Feed:
    """The request before was longer and held huge values: whatever it leaves behind would show."""
    long = case.traces[-1]
    before = Inputs("huge values", long.prompt_len, long.q, long.k * 1e3, torch.full_like(long.v, 1e6))
    guest = machine.open(before, case.request_params)
    machine.finish(guest)
    machine.close(guest)
    feed = machine.open(inputs, case.request_params)
    machine.finish(feed)
    machine.close(feed)
    return feed


def _after_failures(case: Case, machine: Machine, inputs: Inputs) -> Feed:
    """Every other decode step breaks down first, is rolled back, and is done again."""
    feed = machine.open(inputs, case.request_params)
    machine.prefill(feed)
    while not feed.over:
        if feed.done % 2:
            machine.fail(feed)
        machine.decode([feed])
    machine.close(feed)
    return feed


ROLLBACK = Property("rolled back steps", "torch", _same_bits(_after_failures, "after steps that were rolled back the sequence differs"))
PREEMPTION = Property("preempt and replay", "torch", _same_bits(_preempted, "after preemption and recomputation the sequence differs"))
PLACEMENT = Property("slot placement", "torch", _same_bits(_on_other_pages, "on other pages the sequence differs"))
NO_LEAK = Property("no leak between requests", "torch", _same_bits(_after_another, "after another request the sequence differs"))
