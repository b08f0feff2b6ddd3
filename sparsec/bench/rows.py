"""The file of results: one line of JSON a row, appended as rows come, so that a run of many commands can go on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

Row = dict[str, object]

PROTOCOL = ("repetitions", "warm_up", "steps")
KEY = ("what", "gate", "method", "params", "context", "batch", "chunk", "lengths", "reserved_tokens", "config", "fill", "run", *PROTOCOL)
_WINDOW = {"warm_up": 32, "steps": 256}
UNTOLD = {"decode": {"repetitions": 3, **_WINDOW}, "capacity": {"repetitions": 1, **_WINDOW}, "prefill": {"repetitions": 3}}  # by `what`: of rows without these fields


def value_of(row: Mapping[str, object], name: str) -> object:
    """A field of a row; None where it has none. The first rows did not tell their protocol: it was always the same."""
    return row.get(name, UNTOLD.get(str(row.get("what")), {}).get(name))


def key_of(row: Mapping[str, object]) -> tuple[str, ...]:
    """What makes two rows the same measurement: a later one replaces an earlier one. Params are compared as they were given."""
    return tuple(json.dumps(value_of(row, name), sort_keys=True) for name in KEY)


def read_rows(path: Path) -> list[Row]:
    """Rows in the order in which they came; [] where there is no file. A last line without its end was cut short and is no row."""
    if not path.exists():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in whole if line]


def append_row(path: Path, row: Row) -> None:
    """Adds a row, after removing what a cut left behind the last whole line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(row) + "\n").encode())


def find_row(rows: Iterable[Row], wanted: Mapping[str, object]) -> Row | None:
    """The last row of the same measurement that was measured; failing that, the last that says why it could not be."""
    same = [row for row in rows if key_of(row) == key_of(wanted)]
    measured = [row for row in same if "error" not in row]
    return (measured or same or [None])[-1]


def is_measured(rows: Iterable[Row], wanted: Mapping[str, object]) -> bool:
    found = find_row(rows, wanted)
    return found is not None and "error" not in found
