"""Breaks lines of generated Python that are too long, as a person would: in brackets, after commas, before operators.

Works on the text: generated operators stand between blanks, and strings are in plain double quotes. Meaning never changes,
since only blanks inside brackets, and brackets around whole expressions, are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

STEP = "    "
_DEEPEST = 48  # columns of indentation: what is nested further is not indented further
_LOOSEST_FIRST = (
    (" for ",), (" if ", " else "), (" or ",), (" and ",), (" == ", " != ", " < ", " <= ", " > ", " >= ", " in ", " not in "),
    (" | ",), (" & ",), (" + ", " - "), (" * ", " / ", " // ", " % "),
)  # fmt: skip
_LEADING = re.compile(r"(?:for|if|else|or|and|in|not in|==|!=|<=?|>=?|\||&|[+-]|\*|//?|%) ")
_STATEMENT = re.compile(r"(if (?:not )?|return |[A-Za-z_][\w.]*(?:\[[^\]]*\])? [+-]?= )(.*?)(:?(?:  # [^\"]*)?)$")
_LAMBDA = re.compile(r"((?:\w+=)?lambda [^:]*: )(.*?)(,?)$")


def fold(line: str, width: int, bracketed: bool = False) -> list[str]:
    """The line, or the lines that say the same in `width` columns where that can be. `bracketed`: it stands inside brackets."""
    body = line.lstrip()
    if len(line) <= width or body.startswith(("#", '"')):
        return [line]
    indent = line[: len(line) - len(body)][:_DEEPEST]
    head, expression, tail = _parts(body, bracketed)
    return list(_folded(indent, head, expression, tail, width, bracketed))


def _parts(body: str, bracketed: bool) -> tuple[str, str, str]:
    """What stands before and after the expression that a line holds."""
    found = _LAMBDA.match(body) or (None if bracketed else _STATEMENT.match(body))
    if found is not None:
        return found.group(1), found.group(2), found.group(3)
    head = _LEADING.match(body) if bracketed else None
    start = head.end() if head is not None else 0
    end = len(body) - body.endswith(",")
    return body[:start], body[start:end], body[end:]


def _folded(indent: str, head: str, text: str, tail: str, width: int, bracketed: bool) -> Iterator[str]:
    pieces = _at_operators(text)
    if len(pieces) > 1:
        if bracketed and not head.rstrip().endswith(":"):
            yield from _lines(indent, [head + pieces[0], *pieces[1:-1], pieces[-1] + tail], width)
            return
        yield f"{indent}{head}("
        yield from _lines(indent + STEP, pieces, width)
        yield f"{indent}){tail}"
        return
    group = _longest_group(text)
    if group is None:
        yield f"{indent}{head}{text}{tail}"
        return
    start, end = group
    inner = text[start + 1 : end].strip()
    parts = [f"{part}," for part in _at_commas(inner)]
    if len(parts) == 1 and not inner.endswith(","):
        parts = [inner]  # a comma would make a tuple of it
    yield f"{indent}{head}{text[: start + 1]}"
    yield from _lines(indent + STEP, parts, width)
    yield f"{indent}{text[end:]}{tail}"


def _lines(indent: str, pieces: list[str], width: int) -> Iterator[str]:
    for piece in pieces:
        yield from fold(indent[:_DEEPEST] + piece, width, bracketed=True)


def _outside(text: str) -> Iterator[tuple[int, str, int]]:
    """(offset, character, depth of brackets around it) of every character outside strings; brackets are at the depth of what holds them."""
    depth, quoted, escaped = 0, False, False
    for offset, char in enumerate(text):
        if quoted:
            quoted, escaped = char != '"' or escaped, char == "\\" and not escaped
        elif char == '"':
            quoted = True
        else:
            depth -= char in ")]}"
            yield offset, char, depth
            depth += char in "([{"


def _at_operators(text: str) -> list[str]:
    """The text in pieces that begin with its loosest operator; one piece where it has none outside brackets."""
    blanks = [offset for offset, char, depth in _outside(text) if char == " " and depth == 0]
    for operators in _LOOSEST_FIRST:
        cuts = [offset for offset in blanks if text.startswith(operators, offset)]
        if cuts:
            return [text[start:end].strip() for start, end in zip([0, *cuts], [*cuts, len(text)])]
    return [text]


def _at_commas(text: str) -> list[str]:
    cuts = [offset for offset, char, depth in _outside(text) if char == "," and depth == 0]
    pieces = [text[start:end].strip() for start, end in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(text)])]
    return [piece for piece in pieces if piece]


def _longest_group(text: str) -> tuple[int, int] | None:
    """Offsets of the outermost brackets that hold most."""
    opens, found = [], []
    for offset, char, depth in _outside(text):
        if depth == 0 and char in "([{":
            opens.append(offset)
        elif depth == 0 and char in ")]}":
            found.append((opens.pop(), offset))
    longest = max(found, key=lambda group: group[1] - group[0], default=None)
    return longest if longest is not None and longest[1] - longest[0] > 1 else None
