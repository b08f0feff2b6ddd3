"""How long work reports on itself: a function of (stage, done, total), silent unless stderr is a terminal."""

from __future__ import annotations

import sys
from typing import Protocol


class Progress(Protocol):
    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` units of `stage`; done == total ends the stage; total 0 means unknown."""
        ...


def silent(stage: str, done: int, total: int) -> None:
    """Reports nothing."""


def on_terminal(stage: str, done: int, total: int) -> None:
    """One line on stderr that overwrites itself."""
    width = 28
    if total and done >= total:
        sys.stderr.write(f"\r\x1b[K{stage}: done\n")
    elif total:
        filled = width * done // total
        sys.stderr.write(f"\r\x1b[K{stage} [{'#' * filled}{'.' * (width - filled)}] {100 * done // total:3d} %")
    else:
        sys.stderr.write(f"\r\x1b[K{stage} ...")
    sys.stderr.flush()


def default_progress() -> Progress:
    return on_terminal if sys.stderr.isatty() else silent
