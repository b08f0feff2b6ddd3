"""Pages are conserved, and a request holds exactly the bytes that its rows need: rows as the host rule derives them, and never more
pages than admission reserves."""

from __future__ import annotations

import torch

from sparsec.graph.capacity import Capacity, Simulation
from sparsec.verify.case import Case
from sparsec.verify.machine import Feed, Machine
from sparsec.verify.oracle import Step
from sparsec.verify.property import Found, Property, Violation
from sparsec.verify.traces import Inputs
from sparsec_runtime.layout import PARTS, Layout, ZoneLayout

FLOAT = 4  # bytes of a value; traces are float32


# ---- slots -----------------------------------------------------------------------------------


def _slots(case: Case) -> Found:
    """All traces together, closed in another order than opened."""
    inputs = case.traces[-1]
    message = case.guarded("torch", inputs, lambda: _conserved(case))
    if message is not None:
        yield Violation(message, inputs)


def _conserved(case: Case) -> str | None:
    machine = case.machine()
    feeds: list[Feed] = []
    for inputs in case.traces:
        feeds.append(machine.open(inputs, case.request_params))
        while not feeds[-1].decoding:
            machine.advance(feeds[-1])
            message = _lost_pages(machine, feeds, "after a chunk")
            if message is not None:
                return message
    while any(not feed.over for feed in feeds):
        machine.decode([feed for feed in feeds if not feed.over])
        message = _lost_pages(machine, feeds, "after a decode step")
        if message is not None:
            return message
    for feed in (feeds[1], feeds[2], feeds[0]):
        machine.close(feed)
        feeds = [other for other in feeds if other is not feed]
        message = _lost_pages(machine, feeds, "after a request was closed")
        if message is not None:
            return message
    return None


def _lost_pages(machine: Machine, feeds: list[Feed], when: str) -> str | None:
    """What is wrong with the pools, if anything: pages lost, or kept by nobody."""
    for name, stream in machine.manager.storage.streams.items():
        pool = stream.pool
        if pool.free + pool.live + pool.cached != pool.total:
            return f"pool {name} {when}: {pool.free} free + {pool.live} live + {pool.cached} cached pages are not {pool.total}"
        if not feeds and pool.live:
            return f"pool {name}: {pool.live} pages are still live with no request open"
    return None


# ---- bytes -----------------------------------------------------------------------------------


def _bytes(case: Case) -> Found:
    for inputs in case.traces:
        found = case.guarded("torch", inputs, lambda: _accounts(case, inputs))
        if found is not None:
            yield found


def _accounts(case: Case, inputs: Inputs) -> Violation | None:
    machine = case.machine()
    feed = machine.open(inputs, case.request_params)
    machine.finish(feed)
    layout = machine.manager.LAYOUT
    for number, (step, held) in enumerate(zip(feed.steps, feed.bytes, strict=True)):
        wanted = _bytes_of(layout, step, case.shape.head_dim)
        if held.kv != wanted:
            return Violation(f"the request owns {held.kv} bytes of K and V, and its rows need {wanted}", inputs, number)
    found = _against_rule(case, feed, layout)
    need = machine.manager.page_need(inputs.prompt_len, inputs.new + 1, machine.chunk, feed.params)
    if found is None and machine.manager.peak_pages > need:
        message = f"the request held {machine.manager.peak_pages} pages at its peak, and admission reserves {need}"
        return Violation(message, inputs)
    return found


def _bytes_of(layout: Layout, step: Step, channels: int) -> int:
    """Whole pages of the rows that every head holds in every zone."""
    total = 0
    for kept, zones in zip(step.kept, step.zones, strict=True):
        for index, zone in enumerate(layout.zones):
            rows = ((zones == index) & kept).sum(-1)  # [part, kv_head]
            if not layout.split:
                rows = rows.amax(0, keepdim=True).expand(2, -1)
            size = layout.page_size_of(zone)
            pages = -(-rows // size)
            total += sum(int(pages[part].sum()) * size * _row_bits(zone, name, channels) // 8 for part, name in enumerate(PARTS))
    return total


def _row_bits(zone: ZoneLayout, part: str, channels: int) -> int:
    """Bits of one row of one head, its share of scales and minima included (a page holds whole blocks)."""
    codec = zone.codecs.get(part)
    if codec is None:
        return 8 * FLOAT * channels
    numbers = 2 if codec.zero else 1
    return codec.bits * channels + numbers * 8 * FLOAT * channels // codec.block


def _against_rule(case: Case, feed: Feed, layout: Layout) -> Violation | None:
    """Rows held against the derived counts: equal where they are exact, else at most."""
    simulation = Simulation(case.specialised, case.params, case.facts, layout.page_size)
    for number in {0, feed.inputs.new // 2, feed.inputs.new}:
        derived = simulation.run(feed.inputs.prompt_len, number, case.chunk)
        found = _rows_differ(feed, layout, number, derived)
        if found is not None:
            return found
    return None


def _rows_differ(feed: Feed, layout: Layout, number: int, derived: Capacity) -> Violation | None:
    step = feed.steps[number]
    for layer, (kept, zones) in enumerate(zip(step.kept, step.zones, strict=True)):
        for index, zone in enumerate(layout.zones):
            rows = ((zones == index) & kept).sum(-1).to(torch.float64).mean(-1)  # [part]
            for part, name in enumerate(PARTS):
                wanted, held = derived.final[zone.name, name, layer], float(rows[part])
                if abs(held - wanted) > 1e-6 if derived.exact else held > wanted + 1e-6:
                    words = "" if derived.exact else "at most "
                    place = f" in zone {zone.name}" if len(layout.zones) > 1 else ""
                    message = f"the {name} of {held:g} rows per head is held{place}, and the derived count is {words}{wanted:g}"
                    return Violation(message, feed.inputs, number, layer)
    return None


SLOTS = Property("slots conserved", "torch", _slots)
BYTES = Property("bytes live", "torch", _bytes)
