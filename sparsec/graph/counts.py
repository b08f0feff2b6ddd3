"""Count expressions: how many rows each evict leaves, each move takes and each attend reads, as host arithmetic.

Where a count depends on tensors (ragged heads, data-dependent guards) the expression is an upper bound and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.graph.program import Effect, Program, Rule
from sparsec.graph.sizes import Sizes
from sparsec.graph.spans import KV_HEADS, LEN, call, name, number

PARTS = ("K", "V")


@dataclass(frozen=True, slots=True)
class CountRule:
    """One evict, move or attend.

    rows: evict: rows held afterwards; move: rows that leave `source` for `zone`; attend: rows read per query.
    per: "head" (rows of every KV head), "layer" (of all KV heads of the layer together) or "model".
    when, layers, rows are host-known over `lets`, params, facts and counters. Where the count depends on tensors, `rows`
    is an upper bound and `exact` is False. Where a guard does, that part of it was dropped and `certain` is False too:
    the rule may not run although `when` holds. varies: "head" or "layer" where scores decide how many rows a set has there, else "".
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
    varies: str = ""


def count_rules(checked: Checked) -> tuple[CountRule, ...]:
    """Every evict and move, in the order in which they run."""
    return _rules(Program(checked), (t.Evict, t.Move))


def read_rules(checked: Checked) -> tuple[CountRule, ...]:
    """Every attend, with the rows that it lets attention read."""
    return _rules(Program(checked), (t.Attend,))


def _rules(program: Program, kinds: tuple[type[t.Stmt], ...]) -> tuple[CountRule, ...]:
    rules = tuple(Counter(program, rule, effect).rule() for rule, effect in program.effects(kinds))
    bounds = [(place, rule) for place, rule in enumerate(rules) if not rule.exact]
    return tuple(_over_a_bound(program, rule) if _after_a_bound(place, rule, bounds) else rule for place, rule in enumerate(rules))


def _after_a_bound(place: int, rule: CountRule, bounds: list[tuple[int, CountRule]]) -> bool:
    """Whether a rule whose count is an upper bound may have run before, so that the rows that this one starts from are one too."""
    return any("finish_step" in (*rule.hooks, *earlier.hooks) or before < place for before, earlier in bounds)


def _over_a_bound(program: Program, rule: CountRule) -> CountRule:
    """The rule where `len` itself is an upper bound. A guard `len > X` that only the bound passes leaves at most X rows."""
    scope = program.rules[rule.rule]
    parts = [] if rule.when is None else list(_conjuncts(rule.when))
    counting = [part for part in parts if program.reads(part, scope) & {"len", "rows"}]
    limits = [_limit(part) for part in counting]
    known = all(limit is not None and not program.reads(limit, scope) & {"len", "rows"} for limit in limits)
    if rule.action != "evict" or not known:
        return replace(rule, exact=False, certain=rule.certain and not counting)
    rows = _at_least(rule.rows, [_over_all(limit, rule.per) for limit in limits])
    return replace(rule, rows=rows, exact=rule.exact and not program.reads(rule.rows, scope) & {"len", "rows"})


def _at_least(rows: t.Expr, limits: list[t.Expr]) -> t.Expr:
    """The largest of them; inside `min(len, n)` it is `n` that grows, since the guard says that `len` is above the limits."""
    capped = isinstance(rows, t.Call) and rows.name.text == "min" and len(rows.args) == 2
    counts = tuple(dict.fromkeys([rows.args[1] if capped else rows, *limits]))
    largest = counts[0] if len(counts) == 1 else call("max", *counts)
    return call("min", rows.args[0], largest) if capped else largest


def _conjuncts(condition: t.Expr) -> Iterator[t.Expr]:
    if isinstance(condition, t.Binary) and condition.op == "and":
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    else:
        yield condition


def _limit(part: t.Expr) -> t.Expr | None:
    """The most rows for which `len > X` or `len >= X`, either way round, is false."""
    if not isinstance(part, t.Binary):
        return None
    if part.left == LEN and part.op in (">", ">="):
        return part.right if part.op == ">" else t.Binary("-", part.right, number(1))
    if part.right == LEN and part.op in ("<", "<="):
        return part.left if part.op == "<" else t.Binary("-", part.left, number(1))
    return None


def _over_all(rows: t.Expr, per: str) -> t.Expr:
    """Rows of a head as rows of whatever the rule counts over."""
    rows = rows if per == "head" else t.Binary("*", rows, KV_HEADS)
    return t.Binary("*", rows, name("n_layers")) if per == "model" else rows


class Counter:
    """Counts the rows of one effect."""

    def __init__(self, program: Program, rule: Rule, effect: Effect) -> None:
        self.program, self.scope, self.effect = program, rule, effect
        self.sizes = Sizes(program, rule, effect)

    def rule(self) -> CountRule:
        stmt = self.effect.stmt
        layers, layers_known = self._guard(self.scope.hook.layers)
        when, when_known = self._guard(self.effect.when)
        match stmt:
            case t.Move():
                size = self.sizes.size(stmt.rows)
                source, zone = self._source(stmt), stmt.zone.text
                parts = (stmt.component.text,) if stmt.component is not None else PARTS
            case t.Evict(keep=ranking) | t.Attend(read=ranking):
                size, source, zone, parts = self.sizes.ranking(ranking), None, None, PARTS
        certain = layers_known and when_known
        exact = size.exact and certain and not self._stale(size.rows)
        action = type(stmt).__name__.lower()
        lets = self._lets(size.rows, when, layers)
        names, line, index = self.scope.names, self.effect.line, self.scope.index
        return CountRule(
            names, layers, when, action, source, zone, parts, size.rows, size.per, exact, certain, lets, line, index,
            size.varies,
        )  # fmt: skip

    def _guard(self, guard: t.Expr | None) -> tuple[t.Expr | None, bool]:
        """The part of a guard that the host knows, and whether that is all of it."""
        if guard is None or self.sizes.places.known(guard):
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
