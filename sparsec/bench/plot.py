"""Throughput of a run's decode rows against batch and against context, as a PNG.

A method with its params is a series: one colour and marker, one entry of the legend. What the other panel runs along is told by the size and the filling
of a marker, and lines join only points that share it. Values of an axis are few: the series stand side by side at each, so that none hides another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsec.bench.rows import PROTOCOL, Row, value_of

Point = tuple[int, float]
TOLD = ("config", "fill", "chunk", *PROTOCOL)  # where they differ, the legend tells them
TITLES = {"batch": "batch", "context": "prompt tokens of a request"}
COLOURS = (*range(0, 20, 2), *range(1, 20, 2))  # of the palette tab20: strong ones first
MARKERS = "os^DvPX<p>h"  # as many as have no divisor in common with the colours
FILLINGS = ("full", "none", "left", "top", "right", "bottom")
SIZES = (5.0, 11.0)  # points, of the first and the last value of the other axis
WIDTH = 0.7  # of the distance between two values of an axis, over which series stand side by side


class MissingLibrary(Exception):
    """The drawing library is not installed; the message names the extra that brings it."""


@dataclass(frozen=True, slots=True)
class Line:
    """points: (value along the axis, tok_s), sorted, no value twice. fixed: the value of the other axis."""

    label: str
    fixed: int
    points: tuple[Point, ...]


def rows_of(rows: Iterable[Row], run: str | None = None) -> list[Row]:
    """Measured decode rows of a run (None: that of the last one). Raises ValueError where there is none."""
    measured = [row for row in rows if row.get("what") == "decode" and "error" not in row]
    if not measured:
        raise ValueError("the file has no measured row of decode")
    found = [row for row in measured if row["run"] == (measured[-1]["run"] if run is None else run)]
    if not found:
        raise ValueError(f"run '{run}' has no measured row of decode; the file has those of {', '.join(sorted({str(row['run']) for row in measured}))}")
    return found


def lines_along(rows: Sequence[Row], axis: str, fixed: str) -> tuple[Line, ...]:
    """Lines of decode rows along `axis` ("batch" or "context"), one for each series and value of `fixed`. A later row replaces an earlier one."""
    told = [name for name in TOLD if len({value_of(row, name) for row in rows}) > 1]
    found: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows:
        found.setdefault((_label(row, told), int(row[fixed])), {})[int(row[axis])] = float(row["tok_s"])
    return tuple(Line(label, value, tuple(sorted(points.items()))) for (label, value), points in sorted(found.items()))


def _label(row: Row, told: Sequence[str]) -> str:
    params = "".join(f" {name}={value}" for name, value in row["params"].items())
    facts = ", ".join(str(value) if name in ("config", "fill") else f"{name} {value}" for name in told if (value := value_of(row, name)) is not None)
    return f"{row['method']}{params}{f' ({facts})' if facts else ''}"


def draw(rows: Iterable[Row], file: Path, run: str | None = None) -> None:
    """Makes the file's folder if there is none. Raises MissingLibrary, ValueError where no row was measured, OSError where the file cannot be written."""
    figure = figure_of(rows_of(rows, run))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120, format="png")


def figure_of(rows: Sequence[Row]):
    """A matplotlib Figure of measured decode rows of one run: two panels side by side, one legend."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingLibrary("drawing needs matplotlib: pip install 'sparsec[bench]'") from error

    figure = Figure(figsize=(15, 7), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (axis, fixed) in zip(panels, (("batch", "context"), ("context", "batch"))):
        _draw_panel(panel, lines_along(rows, axis, fixed), axis, fixed)
    looks = _looks({line.label for line in lines_along(rows, "batch", "context")})
    figure.legend(handles=[_entry(label, **look, markersize=7) for label, look in looks.items()], loc="outside right upper", fontsize=8)
    gpus, configs = (", ".join(sorted({str(row[name]) for row in rows})) for name in ("gpu", "config"))
    figure.suptitle(f"{gpus}, run {rows[0]['run']}, {configs}")
    return figure


def _draw_panel(panel, lines: Sequence[Line], axis: str, fixed: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    series, others = _looks({line.label for line in lines}), sorted({line.fixed for line in lines})
    values, order = sorted({value for line in lines for value, _ in line.points}), list(series)
    kinds = {other: {"fillstyle": FILLINGS[n % len(FILLINGS)], "markersize": _between(SIZES, n, len(others))} for n, other in enumerate(others)}
    for line in lines:
        beside = _between((-WIDTH / 2, WIDTH / 2), order.index(line.label), len(order))
        places, rates = [values.index(value) + beside for value, _ in line.points], [rate for _, rate in line.points]
        joined = "-" if len(places) > 1 else "none"
        panel.plot(places, rates, linestyle=joined, linewidth=1, label=line.label, **series[line.label], **kinds[line.fixed])
    panel.set(yscale="log", xlabel=TITLES[axis], ylabel="tokens a second", xlim=(-0.5, len(values) - 0.5))
    panel.set_xticks(range(len(values)), [f"{value:,}" for value in values])
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(visible=True, axis="y", alpha=0.3)
    for between in range(len(values) - 1):
        panel.axvline(between + 0.5, color="grey", linewidth=0.5)
    panel.legend(handles=[_entry(f"{fixed} {other:,}", marker="o", color="grey", **kinds[other]) for other in others], fontsize=8)


def _looks(labels: Iterable[str]) -> dict[str, dict[str, object]]:
    """A colour and a marker for each label, in the order of their names."""
    from matplotlib import colormaps

    return {
        label: {"marker": MARKERS[n % len(MARKERS)], "color": colormaps["tab20"](COLOURS[n % len(COLOURS)])} for n, label in enumerate(sorted(labels))
    }  # fmt: skip


def _entry(label: str, **look: object):
    """Of a legend: a marker alone."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="none", label=label, **look)


def _between(ends: tuple[float, float], n: int, count: int) -> float:
    """The n-th of `count` even steps from one end to the other; their middle, if it is the only one."""
    return sum(ends) / 2 if count == 1 else ends[0] + (ends[1] - ends[0]) * n / (count - 1)
