"""The hook graph drawn as SVG: the lifecycle down the left, rules beside the hooks that fire them, data on the right.

Widths are estimated from character counts of a monospace font, so no font metrics and no Graphviz are needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from textwrap import wrap

from sparsec.graph.picture import DataBox, Link, Picture, RuleBox

CHAR, LINE, PAD, GAP = 6.65, 16, 10, 22  # pixels; CHAR for 11 px monospace
POINT_X, POINT_W, POINT_H = 24, 218, 34
RULE_X, RULE_W = 320, 600
DATA_X, DATA_W = 1080, 300
TOP = 84
WIDTH = DATA_X + DATA_W + 24
_WRAP = int((RULE_W - 2 * PAD) / CHAR)
_DATA_WRAP = int((DATA_W - 2 * PAD) / CHAR)
_COLORS = {"reads": "#1f6feb", "writes": "#c2410c", "derives": "#6b7280", "produces": "#6b7280"}
_FILLS = {"observed": "#eef4ff", "state": "#fff4e5", "summary": "#f3f0ff", "zone": "#ecfdf3"}
_STYLE = """text{font:11px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1f2328}
.title{font-size:16px;font-weight:bold}.name{font-weight:bold}.quiet{fill:#57606a}.dead{fill:#8c959f;text-decoration:line-through}
.guard{fill:#8250df}.action{font-weight:bold}.label{paint-order:stroke;stroke:#fff;stroke-width:4px}"""


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        return self.x + self.width


def to_svg(pic: Picture) -> str:
    return _Drawing(pic).text()


class _Drawing:
    def __init__(self, pic: Picture) -> None:
        self.pic = pic
        self.rule_lines = {box.key: _rule_lines(box) for box in pic.rules}
        self.boxes: dict[str, Box] = {}
        self.height = max(self._place_lifecycle(), self._place_data())

    def _place_lifecycle(self) -> float:
        """Each rule stands beside the last hook that fires it; a hook is as far down as its rules need."""
        order = [point.key for point in self.pic.points]
        y = float(TOP)
        for point in self.pic.points:
            mine = [box for box in self.pic.rules if max(box.hooks, key=order.index) == point.key]
            start = y
            for box in mine:
                height = (len(self.rule_lines[box.key]) + 1) * LINE + 2 * PAD
                self.boxes[box.key] = Box(RULE_X, y, RULE_W, height)
                y += height + GAP
            height = max(POINT_H, y - GAP - start)
            self.boxes[point.key] = Box(POINT_X, start + (height - POINT_H) / 2, POINT_W, POINT_H)
            y = max(y, start + POINT_H + GAP)
        return y

    def _place_data(self) -> float:
        """Data stands near the rules that it is linked to, in order of their height, without overlap."""
        y = float(TOP)
        for box in sorted(self.pic.data, key=lambda box: (self._pull(box.key), box.key)):
            height = (len(_data_lines(box)) + 1) * LINE + 2 * PAD
            y = max(y, self._pull(box.key) - height / 2)
            self.boxes[box.key] = Box(DATA_X, y, DATA_W, height)
            y += height + GAP
        return y

    def _pull(self, key: str) -> float:
        linked = [self.boxes[other].middle for other in self._neighbours(key) if other in self.boxes]
        return sum(linked) / len(linked) if linked else float(TOP)

    def _neighbours(self, key: str) -> list[str]:
        """Rules linked to a data box, or, where there are none, the rules linked to what is derived from it."""
        ends = [link.target if link.source == key else link.source for link in self.pic.links if key in (link.source, link.target)]
        rules = [end for end in ends if end.startswith("rule:")]
        return rules or [end for end in ends if not end.startswith("stage:")]

    # ---- drawing ---------------------------------------------------------------------------------

    def text(self) -> str:
        height = self.height + 28
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
            f"<title>{escape(self.pic.title)}: hook graph</title>",
            f"<style>{_STYLE}</style>",
            _markers(),
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
            _line_of_text(POINT_X, 30, self.pic.title, "title"),
            _line_of_text(POINT_X, 50, self.pic.doc, "quiet"),
            *_headings(),
            *self._lifecycle(),
            *self._links(),
            *(part for box in self.pic.rules for part in self._rule(box)),
            *(part for box in self.pic.data for part in self._data(box)),
            _line_of_text(POINT_X, height - 10, "dashed: the model's own stages; struck out: computed for checks only, never generated", "quiet"),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _lifecycle(self) -> list[str]:
        parts = []
        for first, second in zip(self.pic.points, self.pic.points[1:], strict=False):
            a, b = self.boxes[first.key], self.boxes[second.key]
            x = a.x + a.width / 2
            parts.append(f'<path d="M{x:.0f} {a.y + a.height:.0f} V{b.y - 1:.0f}" stroke="#57606a" fill="none" marker-end="url(#order)"/>')
        for point in self.pic.points:
            box = self.boxes[point.key]
            dash = ' stroke-dasharray="5 3"' if point.kind == "stage" else ""
            parts.append(_rect(box, "#f6f8fa" if point.kind == "stage" else "#ffffff", f' stroke="#57606a"{dash}'))
            parts.append(_line_of_text(box.x + PAD, box.middle + 4, point.name, "quiet" if point.kind == "stage" else "name"))
        for rule in self.pic.rules:
            for hook in rule.hooks:
                parts.append(self._fires(self.boxes[hook], self.boxes[rule.key]))
        return parts

    def _fires(self, hook: Box, rule: Box) -> str:
        y = min(max(hook.middle, rule.y + 14), rule.y + rule.height - 14)
        middle = (hook.right + rule.x) / 2
        bend = f"M{hook.right:.0f} {hook.middle:.0f} C{middle:.0f} {hook.middle:.0f} {middle:.0f} {y:.0f} {rule.x - 1:.0f} {y:.0f}"
        return f'<path d="{bend}" stroke="#57606a" fill="none" marker-end="url(#order)"/>'

    def _rule(self, box: RuleBox) -> list[str]:
        place = self.boxes[box.key]
        parts = [_rect(place, "#ffffff", ' stroke="#1f2328"')]
        parts.append(_line_of_text(place.x + PAD, place.y + PAD + 11, box.title, "quiet"))
        for index, (kind, text) in enumerate(self.rule_lines[box.key]):
            parts.append(_line_of_text(place.x + PAD, place.y + PAD + 11 + (index + 1) * LINE, text, kind))
        return parts

    def _data(self, box: DataBox) -> list[str]:
        place = self.boxes[box.key]
        parts = [_rect(place, _FILLS[box.kind], ' stroke="#57606a"')]
        parts.append(_line_of_text(place.x + PAD, place.y + PAD + 11, f"{box.kind} {box.title}", "name"))
        for index, text in enumerate(_data_lines(box)):
            parts.append(_line_of_text(place.x + PAD, place.y + PAD + 11 + (index + 1) * LINE, text, "quiet"))
        return parts

    def _links(self) -> list[str]:
        """Links between rules and data, spread along both sides so that none lie on one another."""
        crossing = [link for link in self.pic.links if link.kind in ("reads", "writes")]
        rule_ports, data_ports = self._ports(crossing, "rule:"), self._ports(crossing, "")
        parts = []
        for link in crossing:
            left, right = rule_ports[link], data_ports[link]
            x1, x2 = self.boxes[_end(link, True)].right, self.boxes[_end(link, False)].x
            start, stop = ((x1, left), (x2 - 1, right)) if link.kind == "writes" else ((x2, right), (x1 + 1, left))
            parts.append(_curve(start, stop, link.kind))
            parts.append(_label(x2 - 12, right - 3, link.kind))
        for link in self.pic.links:
            if link.kind == "derives":
                parts.append(_side(self.boxes[link.source], self.boxes[link.target]))
        return parts

    def _ports(self, links: list[Link], prefix: str) -> dict[Link, float]:
        ports: dict[Link, float] = {}
        on_rule = bool(prefix)
        for key in sorted({_end(link, on_rule) for link in links}):
            mine = [link for link in links if _end(link, on_rule) == key]
            mine.sort(key=lambda link: (self.boxes[_end(link, not on_rule)].middle, link.kind))
            box = self.boxes[key]
            for index, link in enumerate(mine):
                ports[link] = box.y + box.height * (index + 1) / (len(mine) + 1)
        return ports


def _end(link: Link, rule: bool) -> str:
    """The rule or the data at the ends of a link."""
    return link.source if link.source.startswith("rule:") is rule else link.target


def _rule_lines(box: RuleBox) -> list[tuple[str, str]]:
    return [(kind, part) for kind, text in box.lines for part in _wrapped(text, _WRAP)]


def _data_lines(box: DataBox) -> list[str]:
    return [part for text in box.lines for part in _wrapped(text, _DATA_WRAP)]


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, width, subsequent_indent="    ", break_on_hyphens=False) or [""]


def _rect(box: Box, fill: str, stroke: str) -> str:
    return f'<rect x="{box.x:.0f}" y="{box.y:.1f}" width="{box.width:.0f}" height="{box.height:.1f}" rx="6" fill="{fill}"{stroke}/>'


def _line_of_text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.1f}" class="{kind}" xml:space="preserve">{escape(text)}</text>'


def _curve(start: tuple[float, float], stop: tuple[float, float], kind: str) -> str:
    middle = (start[0] + stop[0]) / 2
    path = f"M{start[0]:.0f} {start[1]:.1f} C{middle:.0f} {start[1]:.1f} {middle:.0f} {stop[1]:.1f} {stop[0]:.0f} {stop[1]:.1f}"
    return f'<path d="{path}" stroke="{_COLORS[kind]}" stroke-width="1.4" fill="none" marker-end="url(#{kind})"/>'


def _label(x: float, y: float, kind: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.1f}" text-anchor="end" class="label" style="fill:{_COLORS[kind]}">{kind}</text>'


def _side(source: Box, target: Box) -> str:
    """From a zone to its summary, round the right side."""
    x = source.right
    path = f"M{x:.0f} {source.middle:.1f} C{x + 20:.0f} {source.middle:.1f} {x + 20:.0f} {target.middle:.1f} {x + 1:.0f} {target.middle:.1f}"
    return f'<path d="{path}" stroke="{_COLORS["derives"]}" stroke-dasharray="4 3" fill="none" marker-end="url(#derives)"/>'


def _headings() -> list[str]:
    columns = ((POINT_X, "lifecycle"), (RULE_X, "rules"), (DATA_X, "state and storage"))
    return [_line_of_text(x, TOP - 12, text, "quiet") for x, text in columns]


def _markers() -> str:
    colors = {"order": "#57606a", "reads": _COLORS["reads"], "writes": _COLORS["writes"], "derives": _COLORS["derives"]}
    arrows = (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'
        for name, color in colors.items()
    )
    return f"<defs>{''.join(arrows)}</defs>"
