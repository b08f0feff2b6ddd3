"""How large, deep and long a spec may be, and which characters it may hold.

The limits are far above what a method needs; they keep hostile input from costing time, memory or stack in any later
stage, so those need no guards of their own.
"""

from __future__ import annotations

import re

from lark import Token

from sparsec.diagnostics import Diagnostic
from sparsec.dsl.comments import too_deep_bracket
from sparsec.dsl.tree import Span

MAX_DEPTH = 64  # nesting of expressions and blocks; the deepest shipped spec needs 14
MAX_CHARACTERS = 64 * 1024  # of a file; the longest shipped spec has 4,000
MAX_DIGITS = 18  # of a whole number: it fits a signed 64-bit integer
MAX_FLOAT = 40  # characters of a number with a point
MAX_NAME = 80
MAX_ERRORS = 20  # syntax errors that are reported of one file
MAX_RECOVERED = 16 * 1024  # characters of a file in which more than the first syntax error is looked for

# Control characters, and those that reorder text on screen, so that a reader could not see what is compiled.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def unreadable(text: str) -> tuple[Diagnostic, ...]:
    """Why the text is not even worth parsing: too large (S008), or characters that no text holds (S004)."""
    if len(text) > MAX_CHARACTERS:
        message = f"the file has {len(text):,} characters; a spec may have {MAX_CHARACTERS:,}"
        return (Diagnostic("S008", message, help="one file holds one method: about a page of text"),)
    found = _FORBIDDEN.search(text)
    if found is not None:
        message = f"the character U+{ord(found.group()):04X} cannot stand in a spec"
        return (Diagnostic("S004", message, span_at(text, found.start(), found.end()), "remove it: a spec is plain UTF-8 text"),)
    deep = too_deep_bracket(text, MAX_DEPTH)
    return () if deep is None else (too_deep(span_at(text, deep, deep + 1)),)


def too_deep(span: Span) -> Diagnostic:
    return Diagnostic("S002", f"nested more than {MAX_DEPTH} levels deep", span, "name a part of it with `let`")


def too_long(token: Token) -> Diagnostic | None:
    """S008 where a number or a name is longer than any later stage has to bear."""
    if len(token) <= MAX_DIGITS and token.type != "FLOAT":
        return None
    span = token_span(token)
    if token.type == "INT":
        return Diagnostic("S008", f"this number has {len(token):,} digits; at most {MAX_DIGITS} fit", span, "write a smaller number")
    if token.type == "FLOAT" and len(token) > MAX_FLOAT:
        return Diagnostic("S008", f"this number has {len(token):,} characters; at most {MAX_FLOAT} fit", span, "write a shorter number")
    if token.type == "FLOAT" and float(token) == float("inf"):
        return Diagnostic("S008", "this number is too large for 64-bit floating point", span, "write a smaller number")
    if token.type == "NAME" and len(token) > MAX_NAME:
        return Diagnostic("S008", f"this name has {len(token):,} characters; at most {MAX_NAME} fit", span, "choose a shorter name")
    return None


def token_span(token: Token) -> Span:
    return Span(token.start_pos, token.end_pos, token.line, token.column, token.end_line, token.end_column)


def span_at(text: str, start: int, end: int) -> Span:
    """The span between two offsets."""
    return Span(start, end, *_line_column(text, start), *_line_column(text, end))


def _line_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
