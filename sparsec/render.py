"""Diagnostics as terminal text and as JSON lines.

Knows how to show a piece of source: tabs, wide and unprintable characters, long lines and spans over several lines.
It neither reads files nor decides what is an error.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from sparsec.diagnostics import Diagnostic, Fix, Severity, Source
from sparsec.dsl.tree import Span

TAB = 4  # cells of a tab, wherever it stands
WIDTH = 120  # cells of source shown per line; longer lines are cut around the span
_MESSAGE = 2000  # characters of a message; a name of a megabyte must not be echoed
_CUT = "\u2026"
_COLORS = {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "1;36"}
_GUTTER = "1;34"


@dataclass(frozen=True, slots=True)
class _Line:
    """One source line: its number, its text and the marked columns [first, last), counted from 0 in characters."""

    number: int
    text: str
    first: int
    last: int


def render(diagnostic: Diagnostic, source: Source, color: bool = False) -> str:
    """The terminal form of one diagnostic: no newline at the end."""
    lines = _marked_lines(diagnostic.span, source.text)
    pad = " " * max((len(str(line.number)) for line in lines), default=1)
    head = _paint(f"{diagnostic.severity}[{diagnostic.code}]", _COLORS[diagnostic.severity], color)
    place = f"{printable(source.path)}:{diagnostic.span.line}:{diagnostic.span.column}"
    out = [f"{head}: {_message(diagnostic.message)}", f"{pad}{_paint('-->', _GUTTER, color)} {place}"]
    if lines:
        out += _snippet(lines, pad, _COLORS[diagnostic.severity], color)
    help_text = _help(diagnostic)
    if help_text is not None:
        out.append(f"{pad} {_paint('=', _GUTTER, color)} help: {_message(help_text)}")
    return "\n".join(out)


def render_all(diagnostics: Iterable[Diagnostic], source: Source, color: bool = False) -> str:
    """All diagnostics of one file in source order, a blank line between two."""
    return "\n\n".join(render(one, source, color) for one in in_source_order(diagnostics))


def in_source_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    return sorted(diagnostics, key=lambda one: (one.span.start, one.span.end, one.code))


def to_json(diagnostic: Diagnostic, source: Source) -> str:
    """One JSON object on one line; lines and columns count characters from 1, ends are exclusive."""
    fields = {
        "code": diagnostic.code,
        "severity": str(diagnostic.severity),
        "message": _message(diagnostic.message),
        "file": source.path,
        **_place(diagnostic.span),
        "help": None if diagnostic.help is None else _message(diagnostic.help),
        "fixes": [_fix(one) for one in diagnostic.fixes],
    }
    return json.dumps(fields)


def printable(text: str) -> str:
    """The text with every character that a terminal would act on shown as an escape."""
    return text if text.isprintable() else "".join(_shown(char) for char in text)


def _place(span: Span) -> dict[str, int]:
    return {"line": span.line, "column": span.column, "end_line": span.end_line, "end_column": span.end_column}


def _fix(fix: Fix) -> dict[str, int | str]:
    return {**_place(fix.span), "text": fix.text}


def _help(diagnostic: Diagnostic) -> str | None:
    if diagnostic.help is not None or not diagnostic.fixes:
        return diagnostic.help
    return f"write `{diagnostic.fixes[0].text}`"


def _message(text: str) -> str:
    shown = " ".join(printable(part) for part in text.split("\n"))
    if len(shown) <= _MESSAGE:
        return shown
    return f"{shown[: _MESSAGE * 3 // 4]} {_CUT} {shown[-_MESSAGE // 4 :]}"


def _paint(text: str, style: str, color: bool) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if color else text


def _snippet(lines: list[_Line], pad: str, style: str, color: bool) -> list[str]:
    bar = _paint("|", _GUTTER, color)
    out = [f"{pad} {bar}"]
    for previous, line in zip([None, *lines], lines, strict=False):
        if previous is not None and line.number > previous.number + 1:
            out.append(_paint("...", _GUTTER, color))
        text, marks = _cells(line)
        number = _paint(str(line.number).rjust(len(pad)), _GUTTER, color)
        indent = " " * (len(marks) - len(marks.lstrip()))
        out.append(f"{number} {bar} {text}".rstrip())
        out.append(f"{pad} {bar} {indent}{_paint(marks.lstrip(), style, color)}")
    return out


def _marked_lines(span: Span, text: str) -> list[_Line]:
    """The lines to show: that of the span's start and, where it is another one, that of its end."""
    if not text.strip():
        return []
    begin, line = _line_at(text, span.start)
    if span.end_line <= span.line:
        return [_Line(span.line, line, span.start - begin, max(span.end, span.start + 1) - begin)]
    last_begin, last = _line_at(text, span.end)
    indent = len(last) - len(last.lstrip())
    head = _Line(span.line, line, span.start - begin, max(len(line), span.start - begin + 1))
    return [head, _Line(span.end_line, last, min(indent, span.end - last_begin - 1), span.end - last_begin)]


def _line_at(text: str, offset: int) -> tuple[int, str]:
    """Where the line around the offset begins, and the line."""
    begin = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", begin)
    return begin, text[begin : end if end >= 0 else len(text)].rstrip("\r")


def _cells(line: _Line) -> tuple[str, str]:
    """The line as shown, and the carets under it, both cut to WIDTH cells around the first mark."""
    low, high = _cut(line)
    shown = [_shown(char) for char in line.text[low:high]]
    before = _CUT if low > 0 else ""
    after = _CUT if high < len(line.text) else ""
    skip = len(before) + sum(map(_width, shown[: max(0, line.first - low)]))
    marked = sum(map(_width, shown[max(0, line.first - low) : max(0, line.last - low)]))
    return before + "".join(shown) + after, " " * skip + "^" * max(1, marked)


def _cut(line: _Line) -> tuple[int, int]:
    """The characters [low, high) to show: all of a short line, else those around the first mark."""
    if len(line.text) <= WIDTH:
        return 0, len(line.text)
    low = min(max(0, line.first - WIDTH // 3), len(line.text) - WIDTH)
    return low, low + WIDTH


def _shown(char: str) -> str:
    if char == "\t":
        return " " * TAB
    if char.isprintable():
        return char
    return f"<U+{ord(char):04X}>"


def _width(shown: str) -> int:
    """Terminal cells of one character as shown."""
    if len(shown) > 1:
        return len(shown)
    if unicodedata.combining(shown):
        return 0
    return 2 if unicodedata.east_asian_width(shown) in ("W", "F") else 1
