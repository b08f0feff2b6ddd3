"""The hook graph as a Mermaid flowchart, which GitHub draws."""

from __future__ import annotations

import re

from sparsec.graph.picture import Picture

_BRACKETS = {"observed": ('[/"', '"/]'), "state": ('[("', '")]'), "summary": ('{{"', '"}}'), "zone": ('[["', '"]]')}


def to_mermaid(pic: Picture) -> str:
    lines = ["flowchart LR", "  subgraph lifecycle", "    direction TB"]
    for point in pic.points:
        opening, closing = ('(["', '"])') if point.kind == "stage" else ('["', '"]')
        lines.append(f"    {_id(point.key)}{opening}{_text(point.name)}{closing}")
    lines += [f"    {_id(first.key)} --> {_id(second.key)}" for first, second in zip(pic.points, pic.points[1:], strict=False)]
    lines.append("  end")
    for box in pic.rules:
        label = "<br/>".join(_text(text) for text in (box.title, *(text for _, text in box.lines)))
        lines.append(f'  {_id(box.key)}["{label}"]')
    for box in pic.data:
        opening, closing = _BRACKETS[box.kind]
        label = "<br/>".join(_text(text) for text in (f"{box.kind} {box.title}", *box.lines))
        lines.append(f"  {_id(box.key)}{opening}{label}{closing}")
    for box in pic.rules:
        lines += [f"  {_id(hook)} --> {_id(box.key)}" for hook in box.hooks]
    lines += [f"  {_id(link.source)} -- {link.kind} --> {_id(link.target)}" for link in pic.links]
    return "\n".join(lines) + "\n"


def _id(key: str) -> str:
    return re.sub(r"\W", "_", key)


def _text(text: str) -> str:
    """Mermaid's entities for what would end a quoted label or start markup."""
    for mark, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("|", "#124;")):
        text = text.replace(mark, entity)
    return text
