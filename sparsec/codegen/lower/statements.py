"""Statements of a hook body to steps: definitions, updates, evictions, moves, reads, branches."""

from __future__ import annotations

from sparsec.codegen.lower import build, expressions, sets
from sparsec.codegen.lower.scope import Scope
from sparsec.codegen.plan import Attend, Bind, Evict, Move, Op, Record, Update
from sparsec.codegen.unsupported import unsupported
from sparsec.dsl import tree as t


def lower_body(body: tuple[t.Stmt, ...], scope: Scope) -> None:
    """Append the steps of the statements to scope.steps, in order."""
    for stmt in body:
        scope.line = stmt.span.line
        match stmt:
            case t.Let():
                _let(stmt, scope)
            case t.Assign():
                _assign(stmt, scope)
            case t.Evict():
                scope.steps.append(Evict(_with_heads(sets.keep(stmt.keep, scope), ("h", "t")), scope.when, stmt.span.line))
                scope.stale |= {name for name, value in scope.lets.items() if {"t", "s", "p"} & set(value.axes)}
            case t.Attend():
                scope.steps.append(Attend(sets.keep(stmt.read, scope), scope.when, stmt.span.line))
            case t.Move():
                _move(stmt, scope)
            case t.Branch():
                _branch(stmt, scope)
            case _:
                unsupported("`blend`", stmt.span, "use `attend`", "S909")


def guard(condition: Op, wish: str, scope: Scope, line: int) -> Op:
    """The condition as a local, joined to those it stands under."""
    joined = condition if scope.when is None else build.logic("and", scope.when, condition)
    name = scope.name(wish)
    scope.steps.append(Bind(name, joined, line))
    return build.local(name, joined)


def _branch(stmt: t.Branch, scope: Scope) -> None:
    condition = expressions.lower(stmt.condition, scope)
    name = scope.name("condition")
    scope.steps.append(Bind(name, condition, stmt.span.line))
    held = build.local(name, condition)
    with scope.under(guard(held, "when_true", scope, stmt.span.line)):
        lower_body(stmt.then, scope)
    if stmt.otherwise:
        with scope.under(guard(build.logic("not", held), "when_false", scope, stmt.span.line)):
            lower_body(stmt.otherwise, scope)


def _let(stmt: t.Let, scope: Scope) -> None:
    name = stmt.target.name.text
    letters = tuple(i.name.text for i in stmt.target.indices if isinstance(i, t.Ref))
    scope.letters_of[name] = letters
    if "i" in letters and scope.in_blocks and not scope.in_selection:
        scope.later[name] = stmt
        return
    value = expressions.lower(stmt.value, scope)
    if value.name in ("const", "local") and name not in scope.names.record:
        scope.lets[name] = value
        return
    support = value.support
    if support is not None and support.name != "local":
        rows = scope.name(f"{name}_rows")
        scope.steps.append(Bind(rows, support, stmt.span.line))
        support = build.local(rows, support)
        value = _replace_support(value, value.support, support)
    variable = scope.name(name)
    scope.steps.append(Bind(variable, value, stmt.span.line))
    scope.lets[name] = build.local(variable, value, support)
    if name in scope.names.record:
        scope.steps.append(Record(name, scope.lets[name], stmt.span.line))


def _replace_support(op: Op, old: Op, new: Op) -> Op:
    """The op with a bound support in place of the mask it was built with."""
    if op == old:
        return new
    args = tuple(_replace_support(arg, old, new) for arg in op.args)
    return Op(op.name, args, op.detail, op.axes, op.kind, op.host, op.thin, op.support)


def _assign(stmt: t.Assign, scope: Scope) -> None:
    name = stmt.target.name.text
    item = scope.names.states.get(name)
    assert item is not None, f"line {stmt.span.line}: `{name}` is no state: the checker should have said so"
    value = expressions.lower(stmt.value, scope)
    old = expressions.lower(stmt.target, scope)
    if value.kind == "set":
        value = sets.to_pages(value) if "p" in old.axes else sets.to_tokens(value)
    if stmt.op == "+=":
        value = build.arithmetic("add", old, build.widen(value, old.axes))
    elif value.axes != old.axes:
        value = _expanded(value, old)
    scope.steps.append(Update(name, item.shared, old.axes, value, scope.when, stmt.span.line))


def _expanded(value: Op, like: Op) -> Op:
    if value.host:
        return build.apply("filled", like, value, kind=like.kind)
    narrowed = build.widen(value, tuple(a for a in value.axes if a in like.axes))
    return narrowed if narrowed.axes == like.axes else build.widen(narrowed, like.axes)


def _move(stmt: t.Move, scope: Scope) -> None:
    part = stmt.component.text if stmt.component is not None else None
    rows = _in_part(sets.to_tokens(expressions.lower(stmt.rows, scope)), part)
    scope.steps.append(Move(part, _with_heads(rows, ("h", "t")), stmt.zone.text, scope.when, stmt.span.line))


def _in_part(op: Op, part: str | None) -> Op:
    """In `move K of S`, zone names inside S mean where K is."""
    args = tuple(_in_part(arg, part) for arg in op.args)
    detail = op.detail
    if op.name == "positional" and part is not None and detail[1] is not None:
        detail = (*detail[:2], part, *detail[3:])
    return Op(op.name, args, detail, op.axes, op.kind, op.host, op.thin, op.support)


def _with_heads(op: Op, axes: tuple[str, ...]) -> Op:
    return op if op.axes == axes else build.widen(op, axes)
