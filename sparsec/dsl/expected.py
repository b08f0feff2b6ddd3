"""Parse errors in words: what stood there, and what could have stood there instead."""

from __future__ import annotations

from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from sparsec.diagnostics import Diagnostic
from sparsec.dsl.tree import Span

_WORDS = {"NAME": "a name", "INT": "a number", "FLOAT": "a number", "STRING": 'a text in "quotes"', "REDUCE": "a reduction"}


def describe_token(error: UnexpectedToken, text: str) -> Diagnostic:
    token = error.token
    at_end = token.type == "$END"
    span = _end_of(text) if at_end else _span_of(token)
    found = "the end of the file" if at_end else f"`{token}`"
    return Diagnostic("S001", f"{found} does not fit here", span, "expected " + _choices(error.accepts or error.expected))


def describe_character(error: UnexpectedCharacters, text: str) -> Diagnostic:
    start = error.pos_in_stream
    span = Span(start, start + 1, error.line, error.column, error.line, error.column + 1)
    shown = text[start : start + 1]
    name = f"`{shown}`" if shown.isprintable() else f"the character U+{ord(shown):04X}"
    return Diagnostic("S001", f"{name} is not part of the language", span, "remove it, or put it into a # comment")


def _span_of(token) -> Span:
    return Span(token.start_pos, token.end_pos, token.line, token.column, token.end_line, token.end_column)


def _end_of(text: str) -> Span:
    line = text.count("\n") + 1
    column = len(text) - (text.rfind("\n") + 1) + 1
    return Span(len(text), len(text), line, column, line, column)


def _choices(terminals) -> str:
    words = sorted({_word(name) for name in terminals if name != "$END"})
    return " or ".join(words[:8]) + (" or ..." if len(words) > 8 else "") if words else "the end of the file"


def _word(terminal: str) -> str:
    from sparsec.dsl.parser import grammar

    if terminal in _WORDS:
        return _WORDS[terminal]
    definition = next((d for d in grammar().terminals if d.name == terminal), None)
    return f"`{definition.pattern.value}`" if definition is not None else terminal
