"""Hooks that a decode step runs and in which a method does nothing then: they need no kernel and keep no step out of a graph."""

from __future__ import annotations

import pytest
from sparsec_runtime.gpu.eligible import reasons_against_graph

from sparsec.codegen.skeletons import match_skeletons
from sparsec.diagnostics import Source
from sparsec.pipeline import Compilation, load_manager

SPEC = """sparse 1
method mine {{
  param budget: tokens in 4.. = 8
  on finish_step when {guard} {{
    let votes[t, h] = max[i in last(4), g](probs[i, h, g, t])
    evict keep recent(4) then top[t](votes[t, h]) upto budget
  }}
}}
"""


def compiled(guard: str) -> Compilation:
    return Compilation(Source("mine.sparse", SPEC.format(guard=guard)))


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "ada_snapkv"])
@pytest.mark.parametrize("early", [False, True])
def test_a_prompt_that_is_compacted_chunk_by_chunk_keeps_no_decode_step_out_of_a_graph(name: str, early: bool) -> None:
    compilation = Compilation.load(name, {"evict_in_prefill": early})
    assert match_skeletons(compilation.plan).reasons == ()
    manager = load_manager(compilation)
    assert manager.DECODE.idle == (("finish_step",) if early else ())
    assert not [reason for reason in reasons_against_graph(manager) if "finish_step" in reason]


def test_an_eviction_that_may_run_in_decode_steps_is_not_idle() -> None:
    assert compiled("prefilling and len > budget").plan.bindings[0].hooks == ("finish_step",)
    assert match_skeletons(compiled("prefilling and len > budget").plan).reasons == ()
    for guard in ("len > budget", "(prefilling or len > 2 * budget) and len > budget"):
        (reason,) = match_skeletons(compiled(guard).plan).reasons
        assert reason.startswith("line 4, on finish_step: ")
