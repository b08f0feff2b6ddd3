"""The rows that a run is to have, from one data file: what to measure, and the figures to stand beside it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from sparsec.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """label: the first column of the table. seed, must, stretch: milliseconds a step, None where there is no figure."""

    label: str
    work: Workload
    seed: float | None
    must: float | None
    stretch: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    config: str
    rows: tuple[PlannedRow, ...]

    def dense_beside(self, row: PlannedRow) -> PlannedRow | None:
        """The row without a method at the same context and batch."""
        work = row.work
        same = [one for one in self.rows if (one.work.method, one.work.context, one.work.batch) == ("dense", work.context, work.batch)]
        return same[0] if same and same[0] is not row else None


def read_plan(path: Path) -> Plan:
    """`config`, and `[[row]]` tables: label, method, context, batch; and if need be params, fill, seed, must, stretch."""
    text = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = tuple(_row(dict(table)) for table in text["row"])
    works = [row.work for row in rows]
    twice = [str(work) for work in works if works.count(work) > 1]
    if twice:
        raise ValueError(f"{path} plans a row twice: {twice[0]}")
    return Plan(text["config"], rows)


def _row(table: dict[str, object]) -> PlannedRow:
    label, seed, must, stretch = table.pop("label"), table.pop("seed", None), table.pop("must", None), table.pop("stretch", None)
    params = {name: str(value) for name, value in table.pop("params", {}).items()}
    return PlannedRow(label, Workload(params=params, **table), seed, must, stretch)
