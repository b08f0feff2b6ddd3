"""The hook graph as Graphviz text."""

from __future__ import annotations

from sparsec.graph.picture import DataBox, Picture, RuleBox

_SHAPES = {"observed": "parallelogram", "state": "cylinder", "summary": "note", "zone": "folder"}


def to_dot(pic: Picture) -> str:
    lines = [f"digraph {_quote(pic.title)} {{", "  rankdir=LR;", "  node [shape=box, fontname=monospace, fontsize=10];"]
    lines += [f"  {_quote(p.key)} [label={_quote(p.name)}, style={'dashed' if p.kind == 'stage' else 'bold'}];" for p in pic.points]
    lines += [f"  {_quote(box.key)} [label={_label(_rule_lines(box))}];" for box in pic.rules]
    lines += [f"  {_quote(box.key)} [shape={_SHAPES[box.kind]}, label={_label(_data_lines(box))}];" for box in pic.data]
    lines += [f"  {{ rank=same; {'; '.join(_quote(point.key) for point in pic.points)} }}"]
    for first, second in zip(pic.points, pic.points[1:], strict=False):
        lines.append(f"  {_quote(first.key)} -> {_quote(second.key)} [weight=10];")
    for box in pic.rules:
        lines += [f"  {_quote(hook)} -> {_quote(box.key)} [label=fires];" for hook in box.hooks]
    lines += [f"  {_quote(link.source)} -> {_quote(link.target)} [label={link.kind}];" for link in pic.links]
    return "\n".join([*lines, "}"]) + "\n"


def _rule_lines(box: RuleBox) -> list[str]:
    return [box.title, *(text for _, text in box.lines)]


def _data_lines(box: DataBox) -> list[str]:
    return [f"{box.kind} {box.title}", *box.lines]


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _label(lines: list[str]) -> str:
    """Left-aligned lines: Graphviz ends such a line with \\l."""
    return '"' + "".join(line.replace("\\", "\\\\").replace('"', '\\"') + "\\l" for line in lines) + '"'
