"""The memory floor of a decode step: weights read once and what attention must read once, at the bandwidth of the machine.

What must be read comes from the spec alone (`sparsec.graph.estimate`): rows held after the prompt, bytes of their zones and codecs, the share that
a choice of pages or tokens leaves, summaries. States that hooks update are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsec.bench.workload import Workload
from sparsec.graph.estimate import Estimator
from sparsec.graph.values import resolve
from sparsec.model_facts import ModelFacts
from sparsec.pipeline import Compilation

H200_BYTES_PER_SECOND = 4.3e12


@dataclass(frozen=True, slots=True)
class Floor:
    """Bytes of one step of the whole batch, the first after its prompts."""

    weights: int
    rows: int
    summaries: int

    @property
    def bytes(self) -> int:
        return self.weights + self.rows + self.summaries

    @property
    def milliseconds(self) -> float:
        return self.bytes / H200_BYTES_PER_SECOND * 1e3


def floor_of(work: Workload, model: ModelFacts) -> Floor:
    compilation = Compilation.load(work.method, params=work.params, model=model)
    values = resolve(compilation.checked, work.params, model.names(), work.context)
    traffic = Estimator(compilation.special, values, model).traffic(work.context, work.batch, None)
    return Floor(traffic.weights, traffic.rows, traffic.summaries)
