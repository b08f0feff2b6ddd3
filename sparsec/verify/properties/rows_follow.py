"""Rows follow their tokens through every eviction, move and compaction: what attention reads at an entry is the K and V of the token whose
position the entry has. `pos` goes on from the logical length; ranks are 0 to rows - 1.

Codes come back within half a step of their group: |x - x^| <= s / 2 and rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sparsec.verify.case import Case
from sparsec.verify.machine import Feed, Machine, Stored
from sparsec.verify.property import Found, Property, Violation
from sparsec.verify.traces import ROPE_THETA, Inputs
from sparsec_runtime.layout import Codec, Layout
from sparsec_runtime.rope import Rope

ROUNDING = 1e-5  # relative to the largest value of the tensor

Look = Callable[[Layout, Feed, Stored, int, int], str | None]


def _each_step(look: Look) -> Callable[[Case], Found]:
    """Looks at what every head of every layer stored, in every step of every trace."""

    def check(case: Case) -> Found:
        for inputs in case.traces:
            found = case.guarded("torch", inputs, lambda: _walk(case, inputs, look))
            if found is not None:
                yield found

    return check


def _walk(case: Case, inputs: Inputs, look: Look) -> Violation | None:
    machine = case.machine()
    machine.manager.watch_stored = True
    feed = machine.open(inputs, case.request_params)
    while not feed.over:
        machine.advance(feed)
        found = _look(machine, feed, look)
        if found is not None:
            return found
    machine.close(feed)
    return None


def _look(machine: Machine, feed: Feed, look: Look) -> Violation | None:
    for layer in range(machine.shape.layers):
        for head in range(machine.shape.kv_heads):
            message = look(machine.manager.LAYOUT, feed, machine.manager.stored[layer], layer, head)
            if message is not None:
                return Violation(message, feed.inputs, max(0, feed.done - feed.inputs.prompt_len), layer, head)
    return None


# ---- positions -------------------------------------------------------------------------------


def _positions(layout: Layout, feed: Feed, stored: Stored, layer: int, head: int) -> str | None:
    pos = stored.pos[0, head]
    rows = int((pos >= 0).sum())
    if not bool((pos[:rows] >= 0).all()):
        return f"padding stands between the rows: positions {pos.tolist()}"
    held = pos[:rows]
    if not bool((held[1:] > held[:-1]).all()):
        return f"positions do not grow: {held.tolist()}"
    if int(held[-1]) != feed.done - 1:
        return f"the newest row has position {int(held[-1])}, and the sequence has {feed.done} tokens"
    return None


# ---- payload ---------------------------------------------------------------------------------


def _payload(layout: Layout, feed: Feed, stored: Stored, layer: int, head: int) -> str | None:
    rows = int((stored.pos[0, head] >= 0).sum())
    pos = stored.pos[0, head, :rows]
    for index, part in enumerate(("K", "V")):
        zones = stored.zones[0, index, head, :rows]
        read = (stored.keys if part == "K" else stored.values)[0, head, :rows]
        for number, zone in enumerate(layout.zones):
            inside = zones == number
            if not bool(inside.any()):
                continue
            exact = _exact(layout, feed.inputs, part, layer, head, pos[inside], torch.arange(rows)[inside])
            allowed = ROUNDING * float(exact.abs().max()) + _half_step(exact, zone.codecs.get(part))
            error = (read[inside] - exact).abs()
            if bool((error > allowed).any()):
                row = int((error - allowed).amax(1).argmax())
                what = "is not that of its token" if zone.codecs.get(part) is None else "is more than half a step from that of its token"
                return f"the stored {part} at position {int(pos[inside][row])} {what}: it is off by {float(error[row].max()):.3g}"
    return None


def _exact(layout: Layout, inputs: Inputs, part: str, layer: int, head: int, pos: Tensor, rank: Tensor) -> Tensor:
    """[row, channel] of the tokens at these positions, keys rotated as attention sees them."""
    if part == "V":
        return inputs.v[layer, pos, head]
    rope = Rope.plain(ROPE_THETA, inputs.k.shape[-1])
    cos, sin = rope.cos_sin(pos if layout.position == "logical" else rank)
    return rope.rotate(inputs.k[layer, pos, head][:, None], cos, sin)[:, 0]


def _half_step(exact: Tensor, codec: Codec | None) -> Tensor | float:
    """Half the step of each value's group [row, channel]; groups along tokens start at the zone's first row."""
    if codec is None:
        return 0.0
    axis = 0 if codec.along == "t" else 1
    groups = exact.unflatten(axis, (-1, codec.block))
    low, high = groups.amin(axis + 1, keepdim=True), groups.amax(axis + 1, keepdim=True)
    step = (high - low) / (2**codec.bits - 1) if codec.zero else torch.maximum(high.abs(), low.abs()) / (2 ** (codec.bits - 1) - 1)
    return (step / 2).expand(groups.shape).flatten(axis, axis + 1)


POSITIONS = Property("positions", "torch", _each_step(_positions))
PAYLOAD = Property("rows follow their tokens", "torch", _each_step(_payload))
