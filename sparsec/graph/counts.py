"""Count expressions: how many rows each evict leaves, each move takes and each attend reads, as host arithmetic.

Where a count depends on tensors (ragged heads, data-dependent guards) the expression is an upper bound and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.graph.host import host_known
from sparsec.graph.program import SET_OPS, Effect, Program, Rule

PARTS = ("K", "V")


@dataclass(frozen=True, slots=True)
class CountRule:
    """One evict, move or attend.

    rows: evict: rows held afterwards; move: rows that leave `source` for `zone`; attend: rows read per query.
    per: "head" (rows of every KV head), "layer" (of all KV heads of the layer together) or "model".
    when, layers, rows are host-known over `lets`, params, facts and counters. Where the count depends on tensors, `rows`
    is an upper bound and `exact` is False. Where a guard does, that part of it was dropped and `certain` is False too:
    the rule may not run although `when` holds.
    """

    hooks: tuple[str, ...]
    layers: t.Expr | None
    when: t.Expr | None
    action: str
    source: str | None
    zone: str | None
    parts: tuple[str, ...]
    rows: t.Expr
    per: str
    exact: bool
    certain: bool
    lets: tuple[t.Let, ...]
    line: int
    rule: int


@dataclass(frozen=True, slots=True)
class Size:
    """How many rows a set holds: an expression, and whether it is exact or an upper bound."""

    rows: t.Expr
    exact: bool
    per: str = "head"


def count_rules(checked: Checked) -> tuple[CountRule, ...]:
    """Every evict and move, in the order in which they run."""
    return _rules(Program(checked), (t.Evict, t.Move))


def read_rules(checked: Checked) -> tuple[CountRule, ...]:
    """Every attend, with the rows that it lets attention read."""
    return _rules(Program(checked), (t.Attend,))


def _rules(program: Program, kinds: tuple[type[t.Stmt], ...]) -> tuple[CountRule, ...]:
    return tuple(Counter(program, rule, effect).rule() for rule, effect in program.effects(kinds))


def number(value: int) -> t.Int:
    return t.Int(value)


def name(text: str, *indices: t.Expr) -> t.Ref:
    return t.Ref(t.Ident(text), indices)


def call(function: str, *args: t.Expr) -> t.Call:
    return t.Call(t.Ident(function), args)


def plus(left: t.Expr, right: t.Expr) -> t.Expr:
    if number(0) in (left, right):
        return right if left == number(0) else left
    return t.Binary("+", left, right)


LEN, KV_HEADS = name("len"), name("kv_heads")


class Counter:
    """Counts the rows of one effect."""

    def __init__(self, program: Program, rule: Rule, effect: Effect) -> None:
        self.program, self.scope, self.effect = program, rule, effect

    def rule(self) -> CountRule:
        stmt = self.effect.stmt
        layers, layers_known = self._guard(self.scope.hook.layers)
        when, when_known = self._guard(self.effect.when)
        match stmt:
            case t.Move():
                size = self.size(stmt.rows)
                source, zone = self._source(stmt), stmt.zone.text
                parts = (stmt.component.text,) if stmt.component is not None else PARTS
            case t.Evict(keep=ranking) | t.Attend(read=ranking):
                size, source, zone, parts = self.ranking(ranking), None, None, PARTS
        certain = layers_known and when_known
        exact = size.exact and certain and not self._stale(size.rows)
        action = type(stmt).__name__.lower()
        lets = self._lets(size.rows, when, layers)
        names, line, index = self.scope.names, self.effect.line, self.scope.index
        return CountRule(
            names, layers, when, action, source, zone, parts, size.rows, size.per, exact, certain, lets, line, index
        )

    def known(self, expr: t.Expr) -> bool:
        return host_known(expr, self.program, self.scope)

    def _guard(self, guard: t.Expr | None) -> tuple[t.Expr | None, bool]:
        """The part of a guard that the host knows, and whether that is all of it."""
        if guard is None or self.known(guard):
            return guard, True
        if isinstance(guard, t.Binary) and guard.op == "and":
            left, right = self._guard(guard.left)[0], self._guard(guard.right)[0]
            return (t.Binary("and", left, right) if left and right else left or right), False
        return None, False

    def _stale(self, rows: t.Expr) -> bool:
        """Whether the count goes through a let that counted rows before an earlier eviction of the same rule."""
        reads = self.program.reads(rows, self.scope) & self.effect.stale
        return any(self.program.reads(name(let), self.scope) & {"len", "rows"} for let in reads)

    def _lets(self, *exprs: t.Expr | None) -> tuple[t.Let, ...]:
        used = frozenset().union(*(self.program.reads(expr, self.scope) for expr in exprs if expr is not None))
        return tuple(let for let in self.effect.lets if let.target.name.text in used)

    def _source(self, stmt: t.Move) -> str | None:
        """The zone that rows leave, where the set names one or only one other zone exists."""
        zones = {zone.name.text for zone in self.program.zones}
        named = [ref.name.text for ref in t.walk(stmt.rows) if isinstance(ref, t.Ref) and ref.name.text in zones]
        others = sorted(zones - {stmt.zone.text})
        return named[0] if named else others[0] if len(others) == 1 else None

    # ---- sizes of sets ----------------------------------------------------------------------

    def ranking(self, ranking: t.Ranking) -> Size:
        """Rows of `A then B upto N`: N where one is given, else the sum of the steps; never more than there are."""
        last = ranking.steps[-1]
        if ranking.upto is None:
            return reduce(self._union, (self.size(step) for step in ranking.steps))
        bases = [binder.letter.text for binder in last.binders] if isinstance(last, t.Reduce) else ["t"]
        size = self._bounded(ranking.upto, bases)
        covered = isinstance(last, t.Reduce) and last.binders[0].within is None
        return replace(size, exact=size.exact and covered)

    def size(self, expr: t.Expr) -> Size:
        match expr:
            case t.Call():
                return self._builder(expr)
            case t.Reduce() if expr.op.text in SET_OPS:
                return self._selection(expr)
            case t.Ref():
                return self._named(expr)
            case t.Binary(op="|"):
                return self._union(self.size(expr.left), self.size(expr.right))
            case t.Binary(op="-"):
                return self._difference(expr)
            case t.Binary(op="&"):
                left, right = self.size(expr.left), self.size(expr.right)
                return Size(call("min", left.rows, right.rows), False)
        return Size(LEN, False)

    def _builder(self, expr: t.Call) -> Size:
        args = expr.args
        match expr.name.text:
            case "sink" | "recent" | "oldest" | "last" if self.known(args[0]):
                held = self._rows_of(args[1]) if len(args) > 1 else LEN
                return Size(call("min", held, args[0]), True)
            case "every" if self.known(args[0]):
                return Size(t.Binary("//", t.Binary("-", plus(LEN, args[0]), number(1)), args[0]), True)
            case "itself":
                return Size(number(1), True)
        return Size(LEN, False)

    def _rows_of(self, zone: t.Expr) -> t.Expr:
        """Rows of a zone: in `move V of ...` those whose V lies there, else those whose K does."""
        stmt = self.effect.stmt
        part = stmt.component.text if isinstance(stmt, t.Move) and stmt.component is not None else "K"
        return call("rows", zone, name(part))

    def _named(self, expr: t.Ref) -> Size:
        word = expr.name.text
        if word in {zone.name.text for zone in self.program.zones}:
            return Size(self._rows_of(expr), True)
        let = self.program.let(self.scope, word)
        if let is not None:
            return self.size(let.value)
        if word in self.program.states:
            return self._state(word)
        if word == "open_page":
            return Size(call("min", LEN, name("page_size")), False)
        return {"all": Size(LEN, True), "none": Size(number(0), True)}.get(word, Size(LEN, False))

    def _state(self, word: str) -> Size:
        """A state that holds a set is as large as the largest set that some rule assigns to it."""
        sizes = []
        for rule, effect in self.program.effects(t.Assign):
            if effect.stmt.target.name.text == word:
                sizes.append(Counter(self.program, rule, effect).size(effect.stmt.value))
        rows = [size.rows for size in sizes] or [LEN]
        return Size(call("max", *rows) if len(rows) > 1 else rows[0], False)

    def _selection(self, expr: t.Reduce) -> Size:
        bases = [binder.letter.text for binder in expr.binders]
        within = expr.binders[0].within
        candidates = self.size(within) if within is not None and len(bases) == 1 else Size(LEN, True)
        if expr.op.text not in ("top", "bottom") or len(expr.args) < 2:
            return Size(candidates.rows, False)
        size = self._bounded(expr.args[1], bases, candidates)
        return replace(size, exact=size.exact and candidates.exact)

    def _bounded(self, count: t.Expr, bases: list[str], candidates: Size = Size(LEN, True)) -> Size:
        """min(count, candidates), in rows, per head or over more; an upper bound where the host cannot know the count."""
        if "p" in bases:
            whole = call("tokens", count)
            return Size(call("min", candidates.rows, whole), False) if self.known(count) else Size(candidates.rows, False)
        per = "model" if "l" in bases else "layer" if "h" in bases else "head"
        if self.known(count) and not self.program.free(count, self.scope) & {"h"}:
            held = candidates.rows if per == "head" else t.Binary("*", candidates.rows, KV_HEADS)
            held = t.Binary("*", held, name("n_layers")) if per == "model" else held
            return Size(call("min", held, count), True, per)
        total = self.total(count)
        if total is None:
            return Size(candidates.rows, False, per)
        return Size(call("min", t.Binary("*", candidates.rows, KV_HEADS), total), False, "layer")

    def _union(self, left: Size, right: Size) -> Size:
        """Exact for disjoint sets: a positional prefix with a positional suffix, or a later step of a ranking."""
        if left.per != right.per:
            left, right = self._over_heads(left), self._over_heads(right)
        whole = LEN if left.per == "head" else t.Binary("*", LEN, KV_HEADS)
        (first, first_exact), (second, second_exact) = _uncapped(left), _uncapped(right)
        return Size(call("min", whole, plus(first, second)), first_exact and second_exact, left.per)

    def _over_heads(self, size: Size) -> Size:
        if size.per == "layer":
            return size
        rows, exact = _uncapped(size)
        return Size(t.Binary("*", rows, KV_HEADS), exact, "layer")

    def _difference(self, expr: t.Binary) -> Size:
        """`A - recent(n)` and `A - sink(n)`: what positions alone decide is exact, other differences are bounded by A."""
        left = self.size(expr.left)
        cut = expr.right
        positional = isinstance(cut, t.Call) and cut.name.text in ("recent", "sink") and len(cut.args) == 1
        if positional and self.known(cut.args[0]) and (cut.name.text == "recent" or self._holds_sinks(expr.left)):
            return Size(call("max", number(0), t.Binary("-", left.rows, cut.args[0])), left.exact)
        return Size(left.rows, False)

    def _holds_sinks(self, rows: t.Expr) -> bool:
        """Whether the first rows of the sequence are surely among these: all rows, or a zone that only this move leaves."""
        while isinstance(rows, t.Binary) and rows.op == "-":
            rows = rows.left
        if not isinstance(rows, t.Ref) or rows.name.text == "all":
            return isinstance(rows, t.Ref)
        first = rows.name.text == self.program.zones[0].name.text
        leaving = [effect for _, effect in self.program.effects(t.Move) if effect.stmt.zone.text != rows.name.text]
        return first and leaving == [self.effect]

    # ---- counts per head, summed ------------------------------------------------------------

    def total(self, expr: t.Expr) -> t.Expr | None:
        """An upper bound of the sum over the KV heads of a count that differs per head, or None."""
        if self.known(expr) and "h" not in self.program.free(expr, self.scope):
            return t.Binary("*", expr, KV_HEADS)
        match expr:
            case t.Ref() if (let := self.program.let(self.scope, expr.name.text)) is not None:
                return self.total(let.value)
            case t.Reduce() if expr.op.text == "apportion" and self.known(expr.args[1]):
                return expr.args[1]
            case t.Reduce() if expr.op.text == "count":
                return self._members(expr)
            case t.Binary(op="+"):
                left, right = self.total(expr.left), self.total(expr.right)
                return plus(left, right) if left is not None and right is not None else None
            case t.Binary(op="-") if self.known(expr.right) and not self.program.free(expr.right, self.scope):
                left = self.total(expr.left)
                return t.Binary("-", left, t.Binary("*", expr.right, KV_HEADS)) if left is not None else None
            case t.Binary(op="*") if self.known(expr.left) and not self.program.free(expr.left, self.scope):
                inner = self.total(expr.right)
                return t.Binary("*", expr.left, inner) if inner is not None else None
            case t.Call() if expr.name.text in ("round", "floor", "ceil"):
                inner = self.total(expr.args[0])
                slack = {"floor": number(0), "round": t.Binary("/", KV_HEADS, number(2)), "ceil": KV_HEADS}
                return call("floor", plus(inner, slack[expr.name.text])) if inner is not None else None
            case t.Call() if expr.name.text == "where":
                arms = [self.total(arm) for arm in expr.args[1:]]
                return call("max", *arms) if None not in arms else None
        return None

    def _members(self, expr: t.Reduce) -> t.Expr | None:
        """`count[t in S[h]](1)` over all heads is the size of S over all heads."""
        within = expr.binders[0].within
        if within is None or len(expr.binders) != 1:
            return None
        size = self.size(within)
        return size.rows if size.per == "layer" else t.Binary("*", size.rows, KV_HEADS) if size.per == "head" else None


def _uncapped(size: Size) -> tuple[t.Expr, bool]:
    """`n` of `min(len, n)`, since a union is capped as a whole; dropping another cap leaves an upper bound."""
    rows = size.rows
    if isinstance(rows, t.Call) and rows.name.text == "min" and len(rows.args) == 2:
        return rows.args[1], size.exact and rows.args[0] in (LEN, t.Binary("*", LEN, KV_HEADS))
    return rows, size.exact
