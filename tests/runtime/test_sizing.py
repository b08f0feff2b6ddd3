"""memory_tokens is an amount of bytes: what every method's pools hold together, and what a quantising one makes of it."""

from __future__ import annotations

import pytest
from engines import METHODS, add, drain, engine, prompt
from sparsec_runtime.request import RequestError


def payload(made) -> int:
    """Bytes of K and V that the pools of an engine can hold."""
    return sum(stream.pool.total * stream.page_bytes(stream.payload) for stream in made.manager.storage.streams.values())


@pytest.mark.parametrize("memory", [256, 2048, 4096])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_bytes_of_dense_attention(method, memory):
    made, dense = engine(method, memory_tokens=memory), engine("dense", memory_tokens=memory)
    streams = made.manager.storage.streams.values()
    pages = sum(stream.page_bytes(stream.payload) * len(stream.table().used) for stream in streams)
    assert payload(made) <= payload(dense)
    assert payload(made) + 2 * pages >= payload(dense), "more than pages' rounding is left unused"


QUANTISED = {"block": 16, "residual": 128}


def test_two_bits_hold_several_times_more_tokens_than_dense():
    tokens, admitted = 2048, 4100
    made = engine("kivi", params=QUANTISED, memory_tokens=tokens, chunk=512)
    need = made.manager.page_need(admitted, 8, 512, made.manager.resolve_params({}, admitted))
    assert need <= made.manager.pages().total
    dense = engine("dense", memory_tokens=tokens, chunk=512)
    assert dense.manager.page_need(admitted, 8, 512, {}) > dense.manager.pages().total


def test_a_request_beyond_the_pools_is_refused_with_numbers_and_one_below_runs():
    made = engine("kivi", params={"block": 16, "residual": 128}, memory_tokens=512, chunk=32)
    with pytest.raises(RequestError, match=r"needs \d+ pages at its peak and the engine has \d+"):
        add(made, prompt(3000), new=4)
    total = made.manager.pages().total
    longest = max(n for n in range(500, 2500, 7) if made.manager.page_need(n, 4, 32, made.manager.resolve_params({}, n)) <= total)
    assert longest > 2 * 512
    name = add(made, prompt(longest), new=4)
    assert drain(made)[name][-1].error is None
    pages = made.stats().pages
    assert pages.free == pages.total and pages.live == 0


def test_many_requests_share_small_pools_one_after_the_other():
    made = engine("kivi", params={"block": 8, "residual": 16}, memory_tokens=256, chunk=32)
    names = [add(made, prompt(40 + 7 * n, seed=n), new=6) for n in range(8)]
    outputs = drain(made)
    assert all(outputs[name][-1].error is None for name in names) and made.stats().pages.live == 0
