"""The syntax tree of a `.sparse` file: one frozen dataclass per construct of the grammar.

Nodes carry a `Span` that does not take part in equality, so that two trees compare by meaning. The tree knows
nothing about names, domains or types; those are attached beside it by the checker (`checked.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the source: offsets count characters from 0; lines and columns count from 1; ends are exclusive."""

    start: int
    end: int
    line: int
    column: int
    end_line: int
    end_column: int


NOWHERE = Span(0, 0, 1, 1, 1, 1)


def _span() -> Span:
    return field(default=NOWHERE, compare=False, kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Node:
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Ident(Node):
    """A name where the grammar wants exactly a name."""

    text: str

    def __str__(self) -> str:
        return self.text


# ---- expressions ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expr(Node):
    pass


@dataclass(frozen=True, slots=True)
class Int(Expr):
    value: int


@dataclass(frozen=True, slots=True)
class Float(Expr):
    text: str

    @property
    def value(self) -> float:
        return float(self.text)


@dataclass(frozen=True, slots=True)
class Ref(Expr):
    """`name` or `name[index, ...]`: a param, letter, tensor, set, zone, choice value or model fact."""

    name: Ident
    indices: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Keyword(Node):
    name: Ident
    value: Expr


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """`name(args, key = value)`: a scalar or elementwise function, or a set builder such as `recent(32)`."""

    name: Ident
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True, slots=True)
class Binder(Node):
    """`letter` or `letter in SET` inside the brackets of a reduction."""

    letter: Ident
    within: Expr | None = None


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """`op[binders](args, key = value)`, e.g. `sum[i in last(32), g](probs[i, h, g, t])` or `top[t](s[t, h], n)`."""

    op: Ident
    binders: tuple[Binder, ...]
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True, slots=True)
class SetLiteral(Expr):
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    op: str  # "-" | "not"
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    op: str  # + - * / // % | & and or implies in "not in" < <= > >= == !=
    left: Expr
    right: Expr


# ---- declarations --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item(Node):
    pass


@dataclass(frozen=True, slots=True)
class Cite(Item):
    text: str


@dataclass(frozen=True, slots=True)
class Bound(Node):
    """`in low..high`, `in low..` (high is None) or `in {a, b}` (low is a SetLiteral and is_range is False)."""

    low: Expr
    high: Expr | None
    is_range: bool


@dataclass(frozen=True, slots=True)
class Param(Item):
    name: Ident
    unit: Ident
    bound: Bound | None
    default: Expr
    doc: str | None


@dataclass(frozen=True, slots=True)
class Domain(Item):
    """kind "fixed" (size = upto), "subset" (of `base`) or "groups" (of `base` by `by`)."""

    name: Ident
    letter: Ident
    kind: str
    base: Ident | None
    by: Expr | None
    upto: Expr


@dataclass(frozen=True, slots=True)
class Dtype(Node):
    """`f32`, `int(bits, along = t, block = 32)`, or `set[t]` (name "set", letter "t")."""

    name: Ident
    args: tuple[Expr, ...] = ()
    keywords: tuple[Keyword, ...] = ()
    letter: Ident | None = None


@dataclass(frozen=True, slots=True)
class Weight(Item):
    name: Ident
    letters: tuple[Ident, ...]
    dtype: Dtype
    key: str | None
    value: Expr | None


@dataclass(frozen=True, slots=True)
class Layers(Item):
    name: Ident
    value: Expr


@dataclass(frozen=True, slots=True)
class Store(Node):
    target: Ref
    dtype: Dtype
    value: Expr


@dataclass(frozen=True, slots=True)
class Decode(Node):
    target: Ref
    value: Expr


@dataclass(frozen=True, slots=True)
class Zone(Item):
    name: Ident
    tier: Ident | None
    body: tuple[Store | Decode, ...]
    has_body: bool = True

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(part for part in self.body if isinstance(part, Store))

    @property
    def decodes(self) -> tuple[Decode, ...]:
        return tuple(part for part in self.body if isinstance(part, Decode))


@dataclass(frozen=True, slots=True)
class State(Item):
    target: Ref
    dtype: Dtype
    initial: Expr
    shared: bool


@dataclass(frozen=True, slots=True)
class Summary(Item):
    target: Ref
    dtype: Dtype
    value: Expr


@dataclass(frozen=True, slots=True)
class Ensure(Item):
    text: str
    condition: Expr


@dataclass(frozen=True, slots=True)
class Invariant(Item):
    name: Ident


@dataclass(frozen=True, slots=True)
class Entry(Node):
    name: Ident
    value: Expr


@dataclass(frozen=True, slots=True)
class Schedule(Item):
    entries: tuple[Entry, ...]


# ---- hooks and statements --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stmt(Node):
    pass


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    target: Ref
    value: Expr


@dataclass(frozen=True, slots=True)
class Assign(Stmt):
    target: Ref
    op: str  # "=" | "+="
    value: Expr


@dataclass(frozen=True, slots=True)
class Ranking(Node):
    """`steps[0] then steps[1] ... upto N`; `upto` is None where the spec gives none."""

    steps: tuple[Expr, ...]
    upto: Expr | None


@dataclass(frozen=True, slots=True)
class Evict(Stmt):
    keep: Ranking


@dataclass(frozen=True, slots=True)
class Attend(Stmt):
    """`blind`: the author states that the set may miss the query's own row."""

    read: Ranking
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Move(Stmt):
    component: Ident | None  # K, V or None for both
    rows: Expr
    zone: Ident


@dataclass(frozen=True, slots=True)
class Blend(Stmt):
    binder: Binder
    key: Expr
    value: Expr
    times: Expr


@dataclass(frozen=True, slots=True)
class Branch(Stmt):
    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Hook(Item):
    names: tuple[Ident, ...]
    layers: Expr | None  # `for`
    when: Expr | None
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Method(Node):
    name: Ident
    doc: str | None
    items: tuple[Item, ...]

    def of(self, kind: type[Item]) -> tuple:
        """All items of one kind, in source order."""
        return tuple(item for item in self.items if isinstance(item, kind))


@dataclass(frozen=True, slots=True)
class SparseFile(Node):
    version: int
    method: Method


_PLAIN = ("str", "str | None", "int", "bool")  # annotations of fields without nodes


@cache
def _parts(kind: type[Node]) -> tuple[str, ...]:
    """Fields that may hold nodes."""
    return tuple(entry.name for entry in fields(kind) if entry.name != "span" and entry.type not in _PLAIN)


def children(node: Node) -> Iterator[Node]:
    """Direct child nodes, in source order of the fields."""
    for name in _parts(type(node)):
        value = getattr(node, name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Node))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first; iterative, so depth is no concern."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        below: list[Node] = []  # as `children` gives them, without a generator: this is where a check spends its time
        for name in _parts(type(current)):
            value = getattr(current, name)
            if isinstance(value, tuple):
                below += [item for item in value if isinstance(item, Node)]
            elif isinstance(value, Node):
                below.append(value)
        below.reverse()
        stack += below
