"""Diagnostics: what every stage reports to the user, with a code, a span and a way out.

Only data lives here; `render.py` turns it into terminal text or JSON lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparsec.dsl.tree import NOWHERE, Span


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Fix:
    """A replacement of `span` by `text` that makes the diagnostic go away."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Source:
    """A file as read: `path` is what the user typed."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    code: str
    message: str
    span: Span = NOWHERE
    help: str | None = None
    fixes: tuple[Fix, ...] = ()
    severity: Severity = Severity.ERROR


class SpecError(Exception):
    """A spec cannot be used. Carries every diagnostic of the file, never the first alone."""

    def __init__(self, source: Source, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.source = source
        self.diagnostics = diagnostics
        first = diagnostics[0]
        super().__init__(f"{source.path}:{first.span.line}:{first.span.column}: {first.code}: {first.message}")
