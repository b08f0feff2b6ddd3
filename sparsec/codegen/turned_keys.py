"""Positions that are counted anew: whether a query turned twice sees all rows held at the right distances, or keys must be turned as they are read.

Where every eviction of a method keeps the first rows and the newest and no others, rows lie in two runs: K may be stored turned at its logical position,
and two rotations of the query do. Any other rows have no such runs.
"""

from __future__ import annotations

from sparsec.codegen.keep_rows import keep_rows
from sparsec.codegen.plan import Evict, Plan


def turns_keys(plan: Plan) -> bool:
    """Whether attention turns K, stored before RoPE, at its rank among the rows held."""
    return plan.layout.position == "rank" and not _in_two_runs(plan)


def _in_two_runs(plan: Plan) -> bool:
    found = {_first_rows(step) for binding in plan.bindings for step in binding.steps if isinstance(step, Evict)}
    in_decode = any(isinstance(step, Evict) for binding in plan.bindings if "finish_step" in binding.hooks for step in binding.steps)
    return plan.layout.scope == "shared" and not plan.layout.summaries and in_decode and len(found) == 1 and None not in found


def _first_rows(evict: Evict) -> str | None:
    """How many first rows stay, as Python text over params; None: others than those and the newest may stay too."""
    keep = keep_rows([evict], evict.line)
    return keep.first if keep is not None and keep.state is None and keep.asked is None else None
