"""The gates of single kernels: what each measures, how, and what it must reach. Definitions lie in one data file; this knows no device.

how:
- ceiling: K and V that attention reads of a layer over the time of `kernels`, as a share of the machine's bandwidth; at least `target`
- layer: microseconds of `kernels` in one of the layers; at most `target`
- excess: the same over (bytes / ceiling) * 1.25 + 15 us; at most 1
- ratio: microseconds a layer of `kernels` over those of the `beside` workload's kernels; at most `target`
- step: milliseconds a step beyond those of the `beside` workload, as microseconds a layer; at most `target`
- idle: milliseconds a step in which no kernel or copy of it runs; at most `target`
- move: milliseconds of the move of all that belongs to the `kept` rows of one request, in all layers, to the front of their pages; at most `target`
- rank: microseconds of an exact ranking, `lines` of `entries`, `best` of them; at most `target`
- sample: microseconds of choosing ids in a graph, `rows` of `vocab` that all sample by `sampling`, greedily if it is empty; at most `target`
- column: time of the mass that all queries of a chunk give its rows, over the chunk's attention; at most `target`
- window: the same of the probs of its newest queries
- projections: bytes of all weights over the time of the products, TB/s; at least `target`
- prefill: useful work of prompts over the rate of a matmul; at least `target`
- chunks: the longest chunk of prompts of random lengths over the median; at most `target`
- gap: milliseconds that a request of the `beside` workload waits for a token, at most, while an engine reads the prompt of `of`; at most `target`
- loss: time of that prompt over its time alone; at most `target`
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from sparsec.bench.rows import Row
from sparsec.bench.workload import Workload

AT_LEAST = ("ceiling", "projections", "prefill")
UNITS = {
    "ceiling": "of the ceiling", "projections": "TB/s", "prefill": "of the matmul rate", "layer": "us a layer", "excess": "of what is allowed", "ratio": "x",
    "step": "us a layer", "idle": "ms", "move": "ms", "rank": "us", "sample": "us", "column": "of attention", "window": "of attention", "chunks": "x the median",
    "gap": "ms", "loss": "x alone",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measurement:
    """A workload and the kernels of it that count, by the beginnings of their names. contexts: prompt tokens by row, where rows differ.

    ragged: rows of a layer's longest KV head over those of its shortest, in a method whose heads may differ (None: as the bench says).
    """

    work: Workload
    kernels: tuple[str, ...] = ()
    contexts: tuple[int, ...] | None = None
    ragged: float | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    name: str
    how: str
    target: float
    of: Measurement | None = None
    beside: Measurement | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)  # fields of SamplingParams

    @property
    def bound(self) -> str:
        return f"{'>=' if self.how in AT_LEAST else '<='} {self.target:g}"

    def met(self, measured: float) -> bool:
        return measured >= self.target if self.how in AT_LEAST else measured <= self.target

    def named(self, config: str, run: str) -> dict[str, object]:
        return {"what": "gate", "gate": self.name, "config": config, "run": run}

    def judged(self, measured: float) -> dict[str, object]:
        return {"how": self.how, "target": self.target, "measured": round(measured, 4), "met": self.met(measured)}


def shipped_gates() -> tuple[Gate, ...]:
    return gates_of(files("sparsec.data").joinpath("gates.toml").read_text(encoding="utf-8"))


def gates_of(text: str) -> tuple[Gate, ...]:
    """From `[[gate]]` tables: name, how, target, and what is to be measured."""
    found = tuple(_gate(table) for table in tomllib.loads(text)["gate"])
    names = [gate.name for gate in found]
    assert len(set(names)) == len(names), f"a gate is defined twice: {sorted(name for name in names if names.count(name) > 1)[0]}"
    return found


def markdown(gates: Iterable[Gate], rows: Mapping[str, Row]) -> str:
    """A table of gates; rows by gate name."""
    lines = ["| gate | how | target | measured | met |", "|---|---|---|---|---|"]
    lines += [f"| {gate.name} | {gate.how} | {gate.bound} | {' | '.join(_result(rows.get(gate.name)))} |" for gate in gates]
    return "\n".join(lines)


def aligned(gates: Iterable[Gate], rows: Mapping[str, Row]) -> str:
    """The same for a terminal, with units."""
    lines = [("gate", "target", "measured", "unit", "met")]
    lines += [(gate.name, gate.bound, measured, UNITS[gate.how], met) for gate in gates for measured, met in [_result(rows.get(gate.name))]]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        f"{name:{widths[0]}}  {target:>{widths[1]}}  {measured:>{widths[2]}}  {unit:{widths[3]}}  {met}" for name, target, measured, unit, met in lines
    )


def _result(row: Row | None) -> tuple[str, str]:
    """What was measured, and whether that is enough, or why there is nothing."""
    if row is None or "error" in row:
        return "-", "not measured" if row is None else str(row["error"])
    return f"{row['measured']:g}", "yes" if row["met"] else "no"


def _gate(table: dict[str, object]) -> Gate:
    assert table["how"] in UNITS, f"gate '{table['name']}': no way to measure is called '{table['how']}'"
    sizes = {name: int(table[name]) for name in ("lines", "entries", "best", "kept", "queries", "tokens", "window", "rows", "vocab") if name in table}
    of, beside = (_measurement(table[name]) if name in table else None for name in ("of", "beside"))
    return Gate(str(table["name"]), str(table["how"]), float(table["target"]), of, beside, sizes, dict(table.get("sampling", {})))


def _measurement(table: dict[str, object]) -> Measurement:
    """of and beside: fields of a workload, `kernels`, if rows differ `lengths` (prompt tokens, how many rows) or `spread` (from, to, rows), and `ragged`."""
    given = dict(table)
    ragged = given.pop("ragged", None)
    kernels, lengths, spread = given.pop("kernels", []), given.pop("lengths", None), given.pop("spread", None)
    contexts = None
    if lengths is not None:
        contexts = tuple(tokens for tokens, rows in lengths for _ in range(rows))
    elif spread is not None:
        contexts = spread_evenly(*spread)
    if contexts is not None:
        given |= {"context": max(contexts), "batch": len(contexts)}
    params = {name: str(value) for name, value in given.pop("params", {}).items()}
    return Measurement(Workload(params=params, **given), tuple(kernels), contexts, ragged)


def spread_evenly(low: int, high: int, rows: int) -> tuple[int, ...]:
    """Lengths at even distances on a logarithmic scale."""
    return tuple(round(low * (high / low) ** (row / (rows - 1))) for row in range(rows))
