"""The one error that a command raises for the user: a sentence and an exit code."""

from __future__ import annotations


class CommandError(Exception):
    """`exit_code` 2: the command line is wrong; 3: it could not be done here; 1: a comparison or property failed."""

    def __init__(self, message: str, exit_code: int = 3) -> None:
        super().__init__(message)
        self.exit_code = exit_code
