"""What the grammar throws away: comments, and where brackets open and close.

A scan by one regular expression, linear in the text and indifferent to whether it parses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PIECE = re.compile(r'(?P<text>"[^"\n]*")|(?P<comment>#[^\n]*)|(?P<bracket>[{}\[\]()])|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<other>[^\s])')
_BRACKET = re.compile(r'"[^"\n]*"|#[^\n]*|([{(\[])|([})\]])')
OPENING = {")": "(", "]": "[", "}": "{"}
CLOSING = {opening: closing for closing, opening in OPENING.items()}


@dataclass(frozen=True, slots=True)
class Piece:
    """kind: "text" (quoted), "comment", "bracket", "word" or "other" (one character); start: offset in the source."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Comment:
    """`text` starts with `#`; `alone`: nothing but blanks stands before it on its line."""

    text: str
    start: int
    alone: bool


def scan(text: str, start: int = 0) -> Iterator[Piece]:
    """Everything but white space, in order."""
    for match in _PIECE.finditer(text, start):
        yield Piece(match.lastgroup or "other", match.group(), match.start())


def comments(text: str) -> list[Comment]:
    """All comments of the file, without trailing blanks."""
    found = []
    for piece in scan(text):
        if piece.kind == "comment":
            begin = text.rfind("\n", 0, piece.start) + 1
            found.append(Comment(piece.text.rstrip(), piece.start, not text[begin : piece.start].strip()))
    return found


def open_brackets(text: str, before: int) -> list[Piece]:
    """The brackets that are open just before an offset, outermost first; a stray closing one is passed over."""
    stack: list[Piece] = []
    for piece in scan(text):
        if piece.start >= before:
            break
        if piece.kind != "bracket":
            continue
        if piece.text in CLOSING:
            stack.append(piece)
        elif stack and stack[-1].text == OPENING[piece.text]:
            stack.pop()
    return stack


def too_deep_bracket(text: str, limit: int) -> int | None:
    """The offset of the first bracket with `limit` others open around it."""
    depth = 0
    for match in _BRACKET.finditer(text):
        if match.lastindex == 1:
            depth += 1
            if depth > limit:
                return match.start()
        elif match.lastindex == 2:
            depth = max(0, depth - 1)
    return None
