"""How each row of a batch samples, as far as a decode graph needs to know it. Knows no tensor and no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..sampler import SamplingParams

Draws = Literal["greedy", "sampled", "penalised"]


@dataclass(frozen=True, slots=True)
class RowSampling:
    """params, and the ids that penalties and the row's random numbers rest on."""

    params: SamplingParams = field(default_factory=SamplingParams)
    prompt: Sequence[int] = ()
    generated: Sequence[int] = ()


def in_graph(params: SamplingParams) -> bool:
    """Whether a graph samples such a row; logprobs and a logit bias are not in it."""
    return not params.logit_bias and params.logprobs is None


def draws_of(rows: Sequence[RowSampling]) -> Draws:
    """The least that a step must do to choose the ids of such rows."""
    if any(row.params.penalised for row in rows):
        return "penalised"
    return "greedy" if all(row.params.greedy for row in rows) else "sampled"
