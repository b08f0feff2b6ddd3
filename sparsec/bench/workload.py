"""What is measured: a method with its params over so many requests of one length. Knows no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Fill = Literal["synthetic", "prompt"]


@dataclass(frozen=True, slots=True)
class Workload:
    """params as a user gives them, by name. context: prompt tokens of each request. chunk: prompt tokens of one forward, where there is a prompt.

    fill: "synthetic" makes up what the method holds after the prompts; "prompt" computes them. repetitions: windows, each of `steps` steps after
    `warm_up` others, or prompts, of which the median counts.
    """

    method: str
    params: Mapping[str, str] = field(default_factory=dict)
    context: int = 32768
    batch: int = 8
    fill: Fill = "synthetic"
    chunk: int = 8192
    repetitions: int = 3
    warm_up: int = 32
    steps: int = 256

    def named(self, what: str, config: str, run: str) -> dict[str, object]:
        """The fields by which a row of results is known (`rows.KEY`)."""
        row = {
            "what": what, "method": self.method, "params": dict(sorted(self.params.items())), "context": self.context, "batch": self.batch,
            "config": config, "fill": self.fill, "run": run, "repetitions": self.repetitions,
        }  # fmt: skip
        window = {} if what == "prefill" else {"warm_up": self.warm_up, "steps": self.steps}
        return {**row, **window, **({"chunk": self.chunk} if self.fill == "prompt" else {})}

    def __str__(self) -> str:
        params = "".join(f" {name}={value}" for name, value in sorted(self.params.items()))
        return f"{self.method}{params}, {self.context} x {self.batch}"
