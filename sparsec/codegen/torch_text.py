"""Text of generated functions: values with precedence, and a writer that names what is used twice or would not fit on a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword

from sparsec.codegen.lower.scope import RESERVED
from sparsec.codegen.plan import Op, canonical

WIDTH = 112
_HEAVY = {"positional", "rank", "keep", "reduce", "smooth", "apportion", "pages_to_tokens", "split", "summary", "state", "shared"}
_ALWAYS_LOCAL = {"window", "step"}


def python_name(name: str) -> str:
    """How a param or `let` is called in generated code."""
    return name + "_" if iskeyword(name) or name in RESERVED else name


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of Python and how tightly its outermost operator binds (10: an atom)."""

    text: str
    level: int = 10
    parts: tuple[str, tuple[str, ...]] | None = None  # of a call: the function and its arguments, to break a long line

    def at(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


@dataclass(slots=True)
class Writer:
    """The lines of one function. `source`: the spec's lines, cited before the statements that come from them.

    uses: how often each op occurs. known: ops that have a name here.
    """

    source: tuple[str, ...]
    uses: Counter[Op]
    printers: Mapping[str, Callable[[Writer, Op], Text]]
    lines: list[str] = field(default_factory=list)
    known: dict[Op, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    indent: str = "    "
    cited: int = 0

    # ---- lines ------------------------------------------------------------------------------

    def cite(self, line: int) -> None:
        """The spec line as a comment, once for all that comes from it."""
        if line != self.cited:
            text = f"{self.indent}# line {line}: {self.source[line - 1].strip()}"
            self.lines.append(text if len(text) <= 118 else text[:115] + "...")
            self.cited = line

    def put(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def assign(self, name: str, op: Op) -> None:
        """`name = op`; what does not fit becomes locals first."""
        text = self.value(op, root=True)
        while not self._fits(name, text) and (longest := self._longest(op)) is not None:
            self.local(longest)
            text = self.value(op, root=True)
        if text.parts is not None and not self._on_one_line(name, text):
            self.call(f"{name} = {text.parts[0]}", list(text.parts[1]))
        else:
            self.put(f"{name} = {text.text}")

    def _on_one_line(self, name: str, text: Text) -> bool:
        return len(f"{self.indent}{name} = {text.text}") <= WIDTH

    def _fits(self, name: str, text: Text) -> bool:
        broken = text.parts is not None and max(map(len, text.parts[1]), default=0) + len(self.indent) + 5 <= WIDTH
        return broken or self._on_one_line(name, text)

    def _longest(self, op: Op) -> Op | None:
        """The argument whose text is longest, if a name would be shorter."""
        nameable = [arg for arg in op.args if arg not in self.known and arg.name not in ("local", "const", "param")]
        longest = max(nameable, key=lambda arg: len(self.value(arg).text), default=None)
        return longest if longest is not None and len(self.value(longest).text) > 20 else None

    def call(self, function: str, args: list[str]) -> None:
        """A call on one line, or with one argument a line."""
        text = f"{function}({', '.join(args)})"
        if len(self.indent + text) <= WIDTH:
            self.put(text)
            return
        self.put(f"{function}(")
        self.lines.extend(f"{self.indent}    {arg}," for arg in args)
        self.put(")")

    def short(self, op: Op, limit: int = 44) -> Text:
        """The value, as a local where its text is long."""
        text = self.value(op)
        return self.local(op) if len(text.text) > limit and op.name != "local" else text

    def local(self, op: Op) -> Text:
        """Bind the op to a fresh name, unless it has one."""
        if op not in self.known:
            name = self.fresh(wish_for(op))
            self.assign(name, op)
            self.known[op] = name
        return Text(self.known[op])

    def fresh(self, wish: str) -> str:
        name, n = wish, 2
        while name in self.taken or name in RESERVED - {"step"}:
            name, n = f"{wish}_{n}", n + 1
        self.taken.add(name)
        return name

    # ---- values -----------------------------------------------------------------------------

    def value(self, op: Op, root: bool = False) -> Text:
        """The text of an op; `root`: a statement of its own binds it, so it is not bound again."""
        if op in self.known:
            return Text(self.known[op])
        if not root and (op.name in _ALWAYS_LOCAL or self.uses[op] > 1 and _is_heavy(op)):
            return self.local(op)
        return self.printers[op.name](self, op)

    def args(self, op: Op, budget: int = 96) -> list[Text]:
        """The texts of the arguments; the longest become locals until all fit on a line."""
        texts = [self.value(arg) for arg in op.args]
        while sum(len(text.text) for text in texts) > budget:
            nameable = [n for n, arg in enumerate(op.args) if arg not in self.known and arg.name not in ("local", "const", "param")]
            longest = max(nameable, key=lambda n: len(texts[n].text), default=None)
            if longest is None or len(texts[longest].text) < 28:
                return texts
            texts[longest] = self.local(op.args[longest])
        return texts

    def aligned(self, op: Op, text: Text, axes: tuple[str, ...]) -> Text:
        """The value indexed so that its axes meet `axes`: None where it has no such axis, 0 where a thin h goes."""
        if op.host or op.axes == axes:
            return text
        index = [":"]
        for axis in sorted(set(axes) | set(op.axes), key=_order_of(axes, op.axes)):
            index.append("0" if axis not in axes else ":" if axis in op.axes else "None")
        while index[-1] == ":":
            index.pop()
        return Text(f"{text.at(10)}[{', '.join(index)}]") if index else text


def call_text(function: str, *args: str) -> Text:
    return Text(f"{function}({', '.join(args)})", 10, (function, args))


def _is_heavy(op: Op) -> bool:
    """Worth a name where it is used twice; sets that the view has at hand are not."""
    return op.name in _HEAVY and (op.name != "positional" or bool(op.args) or op.detail[0] == "open_page")


def _order_of(*axes: tuple[str, ...]) -> Callable[[str], int]:
    return canonical(frozenset[str]().union(*axes)).index


_MAPPED = {"mul": "product", "ratio": "ratio", "add": "total", "sub": "difference", "least": "smaller", "greatest": "larger", "where": "chosen"}


def wish_for(op: Op) -> str:
    match op.name:
        case "window":
            return "newest"
        case "step":
            return "step"
        case "positional":
            return f"{op.detail[0]}_rows" if op.detail[1] is None else f"{op.detail[0]}_of_{op.detail[1]}"
        case "reduce" | "smooth" | "rank":
            return str(op.detail[0]) + "_over_" + "_".join(str(d) for d in op.detail[1:] if isinstance(d, str))
        case "state" | "shared" | "summary":
            return python_name(str(op.detail[0]))
        case "keep":
            return "kept"
        case "pages_to_tokens":
            return "rows_of_pages"
        case "split":
            return "slots"
        case "widen":
            return wish_for(op.args[0])
        case "map":
            return "condition" if op.kind == "bool" else _MAPPED.get(str(op.detail[0]), "part")
    return "part"
