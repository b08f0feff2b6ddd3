"""Walking hooks: statements with the conditions they run under, and the references of an expression.

Two statements are exclusive when some condition of one denies a condition of the other: this is how the passes know
that two updates never run together. Nothing is reported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context

_DENIES = {("in", "not in"), ("==", "!="), ("<", ">="), ("<=", ">")}
_OPPOSITES = frozenset({"prefilling", "decoding"})


@dataclass(frozen=True, slots=True)
class Place:
    """One statement of a hook and every condition on the way to it: guards, `when`, and `not` of those in `else`."""

    hook: t.Hook
    stmt: t.Stmt
    conditions: tuple[t.Expr, ...]


def places(hook: t.Hook) -> Iterator[Place]:
    """All statements of a hook that do something, in source order; branches are entered."""
    guards = tuple(guard for guard in (hook.layers, hook.when) if guard is not None)
    yield from _places(hook, hook.body, guards)


def _places(hook: t.Hook, body: tuple[t.Stmt, ...], conditions: tuple[t.Expr, ...]) -> Iterator[Place]:
    for stmt in body:
        if isinstance(stmt, t.Branch):
            yield from _places(hook, stmt.then, (*conditions, stmt.condition))
            yield from _places(hook, stmt.otherwise, (*conditions, t.Unary("not", stmt.condition)))
        else:
            yield Place(hook, stmt, conditions)


def all_places(method: t.Method) -> Iterator[Place]:
    for hook in method.of(t.Hook):
        yield from places(hook)


def conditions_of(hook: t.Hook) -> Iterator[t.Expr]:
    """Every guard of the hook: `for`, `when`, and those of its branches."""
    yield from (guard for guard in (hook.layers, hook.when) if guard is not None)
    stack = list(reversed(hook.body))
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, t.Branch):
            yield stmt.condition
            stack.extend(reversed((*stmt.then, *stmt.otherwise)))


def exclusive(one: Place, other: Place, ctx: Context) -> bool:
    """True where the two statements can never both run in one layer and step.

    The arms of one branch always are. Of other conditions only those count that the first statement cannot change.
    """
    shared = {id(condition) for condition in one.conditions} & {id(condition) for condition in other.conditions}
    own = [condition for condition in (*one.conditions, *other.conditions) if id(condition) not in shared]
    if any(ctx.failed(condition) for condition in own):
        return True  # reported; what was meant is not known
    ones = [part for condition in one.conditions for part in conjuncts(condition)]
    others = [part for condition in other.conditions for part in conjuncts(condition)]
    return any(
        _are_arms(left, right) or (_denies(left, right, ctx) and not _changes(one.stmt, left, ctx))
        for left in ones
        for right in others
    )


def _are_arms(left: t.Expr, right: t.Expr) -> bool:
    return any(isinstance(a, t.Unary) and a.op == "not" and a.operand is b for a, b in ((left, right), (right, left)))


def _changes(stmt: t.Stmt, condition: t.Expr, ctx: Context) -> bool:
    """May a condition have another value after the statement? An eviction changes `len`, an update its states."""
    for node in t.walk(condition):
        symbol = ctx.symbol_of(node) if isinstance(node, t.Ref) else None
        if symbol is not None and symbol.kind == "state":
            return True
        counts = isinstance(node, t.Ref) and node.name.text == "len" or isinstance(node, t.Call) and node.name.text == "rows"
        if counts and isinstance(stmt, t.Evict | t.Move):
            return True
    return False


def conjuncts(condition: t.Expr) -> Iterator[t.Expr]:
    """A condition and every part of it that must hold with it."""
    yield condition
    if isinstance(condition, t.Binary) and condition.op == "and":
        yield from conjuncts(condition.left)
        yield from conjuncts(condition.right)


def _denies(left: t.Expr, right: t.Expr, ctx: Context) -> bool:
    if left == t.Unary("not", right) or right == t.Unary("not", left):
        return True
    if isinstance(left, t.Ref) and isinstance(right, t.Ref):
        return {left.name.text, right.name.text} == _OPPOSITES
    if not (isinstance(left, t.Binary) and isinstance(right, t.Binary)) or left.left != right.left:
        return False
    if left.op == right.op == "==":
        return left.right != right.right and _is_constant(left.right, ctx) and _is_constant(right.right, ctx)
    return left.right == right.right and ((left.op, right.op) in _DENIES or (right.op, left.op) in _DENIES)


def _is_constant(expr: t.Expr, ctx: Context) -> bool:
    """A literal, or a value of a `choice` (but not a param that holds one)."""
    if isinstance(expr, t.Int):
        return True
    symbol = ctx.symbol_of(expr) if isinstance(expr, t.Ref) else None
    return symbol is not None and symbol.kind == "choice_value"


def references(node: t.Node) -> Iterator[t.Ref]:
    """Every reference below a node, index letters included, in source order."""
    return (found for found in t.walk(node) if isinstance(found, t.Ref))


def text_of(node: t.Node, ctx: Context) -> str:
    """The author's own words for a node, on one line."""
    return " ".join(ctx.source.text[node.span.start : node.span.end].split())
