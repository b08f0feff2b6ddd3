"""Throughput of decode rows against batch and against context, a line for each method with its params, as a PNG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsec.bench.rows import Row

Point = tuple[int, float]


class MissingLibrary(Exception):
    """The drawing library is not installed; the message names the extra that brings it."""


@dataclass(frozen=True, slots=True)
class Lines:
    """points by label, each sorted along the axis and without a value twice."""

    axis: str
    points: Mapping[str, tuple[Point, ...]]


def lines_along(rows: Iterable[Row], axis: str, fixed: str) -> Lines:
    """tok_s of measured decode rows along `axis` ("batch" or "context"); rows that differ in `fixed` are different lines. A later row replaces an earlier."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.get("what") == "decode" and "error" not in row:
            params = "".join(f" {name}={value}" for name, value in row["params"].items())
            found.setdefault(f"{row['method']}{params}, {fixed} {row[fixed]:,}", {})[int(row[axis])] = float(row["tok_s"])
    return Lines(axis, {label: tuple(sorted(values.items())) for label, values in sorted(found.items())})


def draw(rows: list[Row], file: Path) -> None:
    """Two panels side by side. Raises MissingLibrary, and ValueError where no row was measured."""
    panels = (lines_along(rows, "batch", "context"), lines_along(rows, "context", "batch"))
    if not panels[0].points:
        raise ValueError("the file has no measured row of decode")
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise MissingLibrary("drawing needs matplotlib: pip install 'sparsec[bench]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(14, 6), layout="constrained")
    for axis, lines in zip(axes, panels):
        for label, points in lines.points.items():
            axis.plot(*zip(*points), marker="o", label=label)
        axis.set(xscale="log", yscale="log", xlabel=_TITLES[lines.axis], ylabel="tokens a second")
        axis.grid(visible=True, which="both", alpha=0.3)
        axis.legend(fontsize=6)
    figure.suptitle(", ".join(sorted({str(row["gpu"]) for row in rows if "gpu" in row})))
    figure.savefig(file, dpi=120, format="png")
    pyplot.close(figure)


_TITLES = {"batch": "batch", "context": "prompt tokens of a request"}
