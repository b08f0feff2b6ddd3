"""Whatever a page held before it was allocated, and whatever lies behind the rows of a request, reaches no result."""

from __future__ import annotations

import pytest
from engines import METHODS, SMALL, add, drain, engine, ids_of, poison, prompt
from sparsec_runtime.engine import Engine
from sparsec_runtime.request import RequestOutput

EARLY = ("snapkv", "pyramidkv", "ada_snapkv", "h2o")
LENGTHS = (50, 7, 29, 97)


def outputs_of(made: Engine) -> dict[str, list[RequestOutput]]:
    """Ragged requests, of which some join late, and one that reuses the pages of the others."""
    for n, length in enumerate(LENGTHS[:3]):
        add(made, prompt(length, seed=n), 12, f"{n}", logprobs=1)
    found = drain(made)
    add(made, prompt(LENGTHS[3], seed=9), 30, "late", logprobs=1)
    return found | drain(made)


@pytest.mark.parametrize(("method", "early"), [*((name, None) for name in METHODS), *((name, True) for name in EARLY)])
def test_what_pages_held_before_reaches_no_result(method: str, early: bool | None) -> None:
    params = SMALL[method] if early is None else {**SMALL[method], "evict_in_prefill": early}
    clean, poisoned = (engine(method, params=params) for _ in range(2))
    poison(poisoned)
    expected, found = outputs_of(clean), outputs_of(poisoned)
    for name, outputs in expected.items():
        assert ids_of(found[name]) == ids_of(outputs)
        assert [output.logprobs for output in found[name]] == [output.logprobs for output in outputs]
