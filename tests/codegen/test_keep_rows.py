"""Amounts of rows that an eviction keeps at the ends: any number of params that the host can compute."""

from __future__ import annotations

import pytest

from sparsec.diagnostics import Source
from sparsec.dsl.source import load_source
from sparsec.pipeline import Compilation, load_manager

SPEC = """sparse 1
method mine {{
  param budget: tokens in 8.. = 24
  param sinks: tokens in 0..4 = 0
  on finish_step when len > budget {{
    evict keep sink({first}) | recent(budget - ({first}))
  }}
}}
"""


@pytest.mark.parametrize(("first", "rows"), [("sinks", 3), ("max(sinks, 4)", 4), ("min(sinks, 2)", 2), ("sinks * 2 + 1", 7), ("budget // 8", 3)])
def test_amounts_of_an_eviction_are_those_of_the_text(first, rows):
    keep = load_manager(Compilation(Source("mine.sparse", SPEC.format(first=first)))).DECODE.keep
    params = {"budget": 24, "sinks": 3}
    assert (keep.first(params), keep.newest(params)) == (rows, 24 - rows)


def test_where_pages_have_summaries_the_hook_in_torch_evicts_and_derives_them_anew():
    text = load_source("quest").text.rstrip().removesuffix("}")
    evicting = text + "  on finish_step when prompt_done and len > 40 {\n    evict keep sink(2) | recent(38)\n  }\n}\n"
    plan = load_manager(Compilation(Source("mine.sparse", evicting))).DECODE
    assert plan.pages is not None and "finish_step" in plan.hooks and plan.reasons == () and plan.keep is None
