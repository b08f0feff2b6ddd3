"""The Markdown table of a run: planned rows beside what was measured of them, and where. Text only; knows no device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsec.bench.plan import Plan, PlannedRow
from sparsec.bench.rows import Row, find_row

HEAD = (
    "method", "params", "context x batch", "floor ms", "ms/step", "ratio", "tok/s", "our dense ms", "seed ms", "must / stretch ms", "met",
    "KV MiB a request", "kernels a step", "idle us",
)  # fmt: skip
NONE = "-"


def replace_between(text: str, name: str, table: str) -> str:
    """The text with the table in place of what stood between the two marker comments of that name."""
    first, last = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the text has no {first} before {last}: add both where the table belongs")
    return f"{before}{first}\n{table}\n{last}{after}"


def markdown(plan: Plan, rows: Sequence[Row], run: str) -> str:
    """Where the run was measured, the table, and why rows are missing."""
    found = {id(row): find_row(rows, row.work.named("decode", plan.config, run)) for row in plan.rows}
    measured = [row for row in found.values() if row is not None and "error" not in row]
    if not measured:
        raise ValueError(f"run '{run}' has measured none of the planned rows")
    lines = [_where(measured, run, plan.config), "", _line(HEAD), _line("---" for _ in HEAD)]
    for row in plan.rows:
        beside = plan.dense_beside(row)
        lines.append(_line(_cells(row, found[id(row)], None if beside is None else found[id(beside)])))
    reasons = [f"- {row.label}, {_size(row)}: {found[id(row)]['error']}" for row in plan.rows if found[id(row)] is not None and "error" in found[id(row)]]
    return "\n".join(lines + (["", "Not measured:", *reasons] if reasons else []))


def last_run(rows: Sequence[Row]) -> str:
    if not rows:
        raise ValueError("the file has no rows")
    return str(rows[-1]["run"])


def _where(measured: Sequence[Row], run: str, config: str) -> str:
    def each(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    versions = each(f"{name} {version}" for row in measured for name, version in row["versions"].items())
    return (
        f"Run `{run}`: {each(row['gpu'] for row in measured)}; {versions}; commit {each(row['commit'] for row in measured)}; random weights of `{config}`, "
        f"weights and KV in {each(str(row['dtype']).removeprefix('torch.') for row in measured)}; {each(_command(row) for row in measured)}."
    )


def _command(row: Row) -> str:
    """The script or command, without what differs from call to call."""
    words = str(row["command"]).split()
    return f"`{'/'.join(words[0].split('/')[-2:])}`"


def _cells(row: PlannedRow, found: Row | None, dense: Row | None) -> tuple[str, ...]:
    params = ", ".join(f"{name} {value}" for name, value in row.work.params.items()) or NONE
    targets = f"{_number(row.must)} / {_number(row.stretch)}"
    if found is None or "error" in found:
        return (row.label, params, _size(row), NONE, NONE, NONE, NONE, _of(dense, "ms_per_step", 2), _number(row.seed), targets, NONE, NONE, NONE, NONE)
    return (
        row.label, params, _size(row), f"{found['floor_ms']:.2f}", f"{found['ms_per_step']:.2f}", f"{found['ratio']:.2f}", f"{found['tok_s']:,.0f}",
        _of(dense, "ms_per_step", 2), _number(row.seed), targets, _met(row, float(found["ms_per_step"])), f"{found['kv_bytes'] / 2**20:,.0f}",
        str(found["kernels"]), f"{found['idle_ms'] * 1e3:.0f}",
    )  # fmt: skip


def _met(row: PlannedRow, milliseconds: float) -> str:
    if row.must is None:
        return NONE
    if row.stretch is not None and milliseconds <= row.stretch:
        return "stretch"
    return "must" if milliseconds <= row.must else f"no, {milliseconds / row.must - 1:+.1%}"


def _size(row: PlannedRow) -> str:
    return f"{row.work.context:,} x {row.work.batch}"


def _of(row: Row | None, name: str, digits: int) -> str:
    return NONE if row is None or "error" in row else f"{row[name]:.{digits}f}"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:g}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
