"""All syntax errors of a text, not the first alone.

After each error the piece that holds it (a statement, else a whole declaration) is blanked out, which moves no offset,
and the rest is parsed again. Where brackets do not match, pieces cannot be told apart: the first error is the last.
"""

from __future__ import annotations

import re

from lark import Lark
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from sparsec.diagnostics import Diagnostic
from sparsec.dsl.comments import CLOSING, OPENING, Piece, open_brackets, scan
from sparsec.dsl.expected import DECLARATIONS, STATEMENTS, Place, describe, describe_character, wrong_version
from sparsec.dsl.limits import MAX_ERRORS, MAX_RECOVERED, span_at

_NUMBER = re.compile(r"\s+(\d+(?:\.\d+)?)")
_BLANK = re.compile(r"[^\n]")
_STARTERS = {name.lower() for name in (DECLARATIONS | STATEMENTS | {"STORE", "DECODE"}) - {"WHEN"}}
_GUARDS = ("when", "for")
_NOISE = ("!", ";", ".")  # the rest of the piece reads well without them
_FINAL = ("S003", "S005", "S007")  # after these the rest of the text would be guesswork


def syntax_errors(grammar: Lark, text: str, error: UnexpectedInput, version: int) -> tuple[Diagnostic, ...]:
    """Every error that can be told apart, in source order; `error` is the parser's first."""
    other = _other_version(text, version)
    if other is not None:
        return (other,)
    found: list[Diagnostic] = []
    rest, current = text, error
    while current is not None and len(found) < MAX_ERRORS:
        offset = _offset(current, rest)
        described, own = _describe(grammar, rest, current, offset)
        found.append(described)
        blanked = None if described.code in _FINAL or len(text) > MAX_RECOVERED else _without(rest, offset, own)
        if blanked is None or blanked == rest:
            break
        rest = blanked
        current = _parse_error(grammar, rest)
        if current is not None and _offset(current, rest) <= offset and own:
            break
    return tuple(sorted(found, key=lambda one: one.span.start))


def _other_version(text: str, version: int) -> Diagnostic | None:
    """S003 where the text states another version: its grammar is not ours, so nothing else is worth saying."""
    first = next((piece for piece in scan(text) if piece.kind != "comment"), None)
    if first is None or first.text != "sparse":
        return None
    stated = _NUMBER.match(text, first.end)
    if stated is None or stated.group(1).lstrip("0") == str(version):
        return None
    return wrong_version(stated.group(1)[:20], version, span_at(text, first.start, stated.end()))


def _parse_error(grammar: Lark, text: str) -> UnexpectedInput | None:
    try:
        grammar.parse(text)
    except UnexpectedInput as error:
        return error
    return None


def _offset(error: UnexpectedInput, text: str) -> int:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return len(text)
    return error.pos_in_stream


def _describe(grammar: Lark, text: str, error: UnexpectedInput, offset: int) -> tuple[Diagnostic, bool]:
    """The diagnostic, and whether the piece at the offset itself is wrong: else the piece before it is unfinished."""
    if isinstance(error, UnexpectedCharacters):
        return describe_character(text, offset), False
    assert isinstance(error, UnexpectedToken), f"lark raised an unknown kind of parse error: {error!r}"
    before = tuple(piece for piece in scan(text[:offset]) if piece.kind != "comment")[-2:]
    accepts = error.accepts if len(text) > MAX_RECOVERED else _accepted_before(grammar, text, offset)
    place = Place(text, error.token, accepts, before, tuple(open_brackets(text, offset)))
    return describe(place), accepts >= DECLARATIONS or accepts >= STATEMENTS


def _accepted_before(grammar: Lark, text: str, offset: int) -> set[str]:
    """What would have fitted at the offset: the terminals accepted before the wrong one made the parser reduce."""
    parser = grammar.parse_interactive(text)
    for token in parser.lexer_thread.lex(parser.parser_state):
        if token.start_pos >= offset:
            break
        parser.feed_token(token)
    return parser.accepts()


def _without(text: str, offset: int, own: bool) -> str | None:
    """The text with the piece that holds the error blanked out; None where there is none."""
    if text[offset : offset + 1] in _NOISE:
        return _blank(text, offset, offset + 1)
    pieces = [piece for piece in scan(text) if piece.kind in ("bracket", "word")]
    guard = _without_guard(text, pieces, offset)
    if guard is not None:
        return guard
    starts = [(piece, depth) for piece, depth in _with_depth(pieces) if piece.text in _STARTERS and piece.start < offset + own]
    if not starts:
        return None
    start, depth = starts[-1]
    return _blank(text, start.start, _end_of(pieces, start, depth, offset, len(text)))


def _without_guard(text: str, pieces: list[Piece], offset: int) -> str | None:
    """Where the error stands in the condition of a `when` or `for`: the text with another condition, so that its block stays."""
    words = [piece for piece in pieces if piece.start < offset and (piece.text in _STARTERS or piece.text in _GUARDS)]
    if not words or words[-1].text not in _GUARDS:
        return None
    behind = next((piece for piece in pieces if piece.start >= offset and (piece.text == "{" or piece.text in _STARTERS)), None)
    start = words[-1].end
    if behind is None or behind.text != "{" or behind.start - start < 3 or "{" in text[start : behind.start]:
        return None
    return text[:start] + " x" + _BLANK.sub(" ", text[start + 2 : behind.start]) + text[behind.start :]


def _with_depth(pieces: list[Piece]) -> list[tuple[Piece, int]]:
    depth, found = 0, []
    for piece in pieces:
        if piece.text in OPENING:
            depth -= 1
        found.append((piece, depth))
        if piece.text in CLOSING:
            depth += 1
    return found


def _end_of(pieces: list[Piece], start: Piece, depth: int, offset: int, length: int) -> int:
    """Where the piece ends: before the next starter at its own depth, or before the bracket that closes its block."""
    for piece, at in _with_depth(pieces):
        if piece.start <= max(start.start, offset - 1):
            continue
        if at < depth or (at == depth and piece.start > start.start and piece.text in _STARTERS):
            return piece.start
    return length


def _blank(text: str, start: int, end: int) -> str:
    return text[:start] + _BLANK.sub(" ", text[start:end]) + text[end:]
