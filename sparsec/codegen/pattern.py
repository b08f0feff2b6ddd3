"""Operations are compared as text, with holes for the names of a spec."""

from __future__ import annotations

import re


def fill(pattern: str, text: str) -> dict[str, str] | None:
    """The holes `{name}` of a pattern as the text fills them, or None; a hole that occurs twice is filled with one name."""
    seen: set[str] = set()
    parts = []
    for n, piece in enumerate(re.split(r"\{(\w+)\}", pattern)):
        if n % 2 == 0:
            parts.append(re.escape(piece))
        elif piece in seen:
            parts.append(f"(?P={piece})")
        else:
            seen.add(piece)
            parts.append(rf"(?P<{piece}>\w+)")
    found = re.fullmatch("".join(parts), text)
    return None if found is None else found.groupdict()
