"""One layout for every spec: two spaces, 120 columns, comments kept, at most one blank line where the author had some.

A comment inside of a statement moves above it. Formatting is idempotent and changes no meaning: the tree stays equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.comments import Comment, comments, scan
from sparsec.dsl.layout import WIDTH
from sparsec.dsl.layout_items import hook_head, prefixed, simple_lines, with_doc
from sparsec.dsl.parser import parse
from sparsec.dsl.source import unified

STEP = 2  # columns per block


def format_text(text: str, path: str = "<text>") -> str:
    """The formatted text. Raises SpecError where the text does not parse."""
    source = Source(path, unified(text))
    return format_file(parse(source), source.text)


def format_file(file: t.SparseFile, text: str = "") -> str:
    """The text of a tree; `text` is where it was parsed from and gives comments and blank lines."""
    printer = _Printer(text)
    printer.line(file.span.start, printer.header_end(file.span.start, file.method.span.start), 0, [f"sparse {file.version}"])
    printer.blank()
    printer.method(file.method)
    printer.rest()
    return "\n".join(printer.out) + "\n"


class _Printer:
    """Walks the tree in source order, and lets out each comment before the first line that starts behind it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.out: list[str] = []
        self.comments = comments(text)
        self.next_comment = 0
        self.braces = [piece.start for piece in scan(text) if piece.text == "{" and piece.kind == "bracket"]

    # ---- lines and comments ----

    def line(self, start: int, end: int, indent: int, block: list[str]) -> None:
        """A statement that takes source [start, end), with the comments that belong to it."""
        self.comments_before(max(start, end), indent)
        if self.blank_before(start):
            self.blank()
        trailing = self.trailing(end)
        pad = " " * indent
        if trailing is not None:
            joined = f"{pad if len(block) == 1 else ''}{block[-1]}  {trailing.text}"
            if len(joined) <= WIDTH:
                block = [*block[:-1], f"{block[-1]}  {trailing.text}"]
            else:
                self.out.append(pad + trailing.text)
            self.next_comment += 1
        self.out += [pad + block[0], *block[1:]]

    def comments_before(self, offset: int, indent: int) -> None:
        while self.next_comment < len(self.comments) and self.comments[self.next_comment].start < offset:
            comment = self.comments[self.next_comment]
            if comment.alone and self.blank_before(comment.start):
                self.blank()
            self.out.append(" " * indent + comment.text)
            self.next_comment += 1

    def trailing(self, end: int) -> Comment | None:
        """The comment on the line where a statement ends, if nothing else follows there."""
        if self.next_comment == len(self.comments):
            return None
        comment = self.comments[self.next_comment]
        return comment if not self.text[end : comment.start].strip(" \t") else None

    def blank_before(self, offset: int) -> bool:
        begin = self.text.rfind("\n", 0, offset)
        previous = self.text.rfind("\n", 0, max(0, begin))
        return begin > 0 and not self.text[begin:offset].strip() and not self.text[previous + 1 : begin].strip()

    def blank(self) -> None:
        """An empty line, but for the start of a block and behind another one."""
        if self.out and self.out[-1] and not self.out[-1].endswith("{"):
            self.out.append("")

    def rest(self) -> None:
        self.comments_before(len(self.text) + 1, 0)

    def header_end(self, start: int, next_start: int) -> int:
        """Where the last word before `next_start` ends, comments aside."""
        words = [piece.end for piece in scan(self.text[:next_start], start) if piece.kind != "comment"]
        return words[-1] if words else start

    # ---- blocks ----

    def block(self, span: t.Span, head_end: int, indent: int, head: list[str], body: Callable[[int], None]) -> None:
        """`head {`, the body one step in, `}`; `{}` where nothing is in it."""
        brace = self.brace(head_end) + 1
        self.line(span.start, brace, indent, [*head[:-1], head[-1] + " {"])
        self.close(body, span.end - 1, span.end, indent)

    def close(self, body: Callable[[int], None], start: int, end: int, indent: int, tail: str = "") -> None:
        opened = len(self.out)
        body(indent + STEP)
        self.comments_before(start, indent + STEP)
        if len(self.out) == opened and self.out[-1].endswith("{") and not tail:
            self.out[-1] += "}"
            self.append_trailing(end)
            return
        if not self.out[-1]:
            self.out.pop()
        self.closing(end, indent, "}" + tail)

    def closing(self, end: int, indent: int, text: str) -> None:
        self.out.append(" " * indent + text)
        self.append_trailing(end)

    def append_trailing(self, end: int) -> None:
        comment = self.trailing(end)
        if comment is not None:
            self.out[-1] += "  " + comment.text
            self.next_comment += 1

    def brace(self, offset: int) -> int:
        """The first `{` at or behind an offset; the offset itself for a tree that has no text."""
        index = bisect_left(self.braces, offset)
        return self.braces[index] if index < len(self.braces) else offset

    # ---- declarations ----

    def method(self, method: t.Method) -> None:
        head = with_doc([f"method {method.name}"], method.doc, 0, " {")
        self.block(method.span, method.name.span.end, 0, head, lambda indent: self.items(method.items, indent))
        if self.out[-1].endswith("{}"):
            self.out[-1:] = [self.out[-1][:-1], "}"]

    def items(self, items: tuple[t.Item, ...], indent: int) -> None:
        for item in items:
            if isinstance(item, t.Hook):
                self.hook(item, indent)
            elif isinstance(item, t.Zone) and item.has_body:
                head = [f"zone {item.name}" + (f" at {item.tier}" if item.tier else "")]
                self.block(item.span, (item.tier or item.name).span.end, indent, head, lambda inner, zone=item: self.simple(zone.body, inner))
            elif isinstance(item, t.Schedule):
                self.block(item.span, item.span.start, indent, ["schedule"], lambda inner, one=item: self.simple(one.entries, inner))
            else:
                self.simple((item,), indent)

    def simple(self, nodes: tuple[t.Node, ...], indent: int) -> None:
        for node in nodes:
            self.line(node.span.start, node.span.end, indent, simple_lines(node, indent))

    def hook(self, hook: t.Hook, indent: int) -> None:
        end = (hook.when or hook.layers or hook.names[-1]).span.end
        self.block(hook.span, end, indent, hook_head(hook, indent), lambda inner: self.statements(hook.body, inner))

    def statements(self, body: tuple[t.Stmt, ...], indent: int) -> None:
        for statement in body:
            if isinstance(statement, t.Branch):
                self.branch(statement, indent)
            else:
                self.simple((statement,), indent)

    def branch(self, branch: t.Branch, indent: int) -> None:
        head = prefixed("when ", branch.condition, indent, 2)
        brace = self.brace(branch.condition.span.end) + 1
        self.line(branch.span.start, brace, indent, [*head[:-1], head[-1] + " {"])
        if not branch.otherwise:
            self.close(lambda inner: self.statements(branch.then, inner), branch.span.end - 1, branch.span.end, indent)
            return
        end = max((one.span.end for one in branch.then), default=brace)
        second = self.brace(end)
        self.close(lambda inner: self.statements(branch.then, inner), second, second + 1, indent, " else {")
        self.close(lambda inner: self.statements(branch.otherwise, inner), branch.span.end - 1, branch.span.end, indent)
