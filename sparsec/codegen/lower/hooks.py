"""One `on ... { }` to one Binding: guards first, then the body, without lets that nothing reads."""

from __future__ import annotations

from sparsec.codegen.lower import expressions, host, statements
from sparsec.codegen.lower.scope import Names, Scope
from sparsec.codegen.plan import Binding, Op, Skip, SummaryPlan, canonical
from sparsec.codegen.lower.walks import param_names
from sparsec.codegen.unsupported import unsupported
from sparsec.dsl import tree as t


def lower_hooks(names: Names) -> tuple[Binding, ...]:
    taken: set[str] = set()
    return tuple(_binding(hook, names, taken) for hook in names.method.of(t.Hook))


def _binding(hook: t.Hook, names: Names, taken: set[str]) -> Binding:
    hooks = tuple(name.text for name in hook.names)
    if "probe_attention" in hooks:
        unsupported("`probe_attention`", hook.span, "observe the prompt with end_of_prompt and `i in last(n)`", "S910")
    scope = Scope(names, hooks)
    for param in names.params:
        scope.taken.add(param)
    guard = host.text(hook.layers, host.Where(names)) if hook.layers is not None else None
    scope.when = _when(hook, scope)
    statements.lower_body(_live(hook.body, names.record), scope)
    steps = tuple(scope.steps)
    return Binding(_function_name(hook, taken), hooks, guard, param_names(steps, tuple(names.params)), steps, hook.span.line)


def _when(hook: t.Hook, scope: Scope) -> Op | None:
    """Host conditions leave early; the others become the mask `when`."""
    masks: list[t.Expr] = []
    for condition in _conjuncts(hook.when):
        if _host(condition):
            scope.steps.append(Skip(expressions.lower(condition, scope), condition.span.line))
        else:
            masks.append(condition)
    if not masks:
        return None
    joined = masks[0]
    for mask in masks[1:]:
        joined = t.Binary("and", joined, mask, span=hook.when.span)
    when = statements.guard(expressions.lower(joined, scope), "when", scope, hook.when.span.line)
    scope.steps.append(Skip(when, hook.when.span.line))
    return when


def _conjuncts(expr: t.Expr | None) -> tuple[t.Expr, ...]:
    if isinstance(expr, t.Binary) and expr.op == "and":
        return _conjuncts(expr.left) + _conjuncts(expr.right)
    return () if expr is None else (expr,)


def _host(expr: t.Expr) -> bool:
    """Only flags of the step: the same for all rows."""
    names = {n.name.text for n in t.walk(expr) if isinstance(n, t.Ref)}
    return bool(names) and names <= {"prefilling", "decoding"}


def _live(body: tuple[t.Stmt, ...], record: frozenset[str]) -> tuple[t.Stmt, ...]:
    """The statements without lets that nothing after them reads, unless they are recorded."""
    used = {n.name.text for stmt in body for n in t.walk(stmt) if isinstance(n, t.Ref) and not _is_target(n, body)} | record
    kept = tuple(s for s in body if not (isinstance(s, t.Let) and s.target.name.text not in used))
    return kept if len(kept) == len(body) else _live(kept, record)


def _is_target(ref: t.Ref, body: tuple[t.Stmt, ...]) -> bool:
    return any(isinstance(stmt, t.Let) and stmt.target is ref for stmt in body)


def _function_name(hook: t.Hook, taken: set[str]) -> str:
    """Named by what the hook does, so that a traceback says it."""
    kinds = [node for stmt in hook.body for node in t.walk(stmt)]
    states = [s.target.name.text for s in kinds if isinstance(s, t.Assign)]
    if any(isinstance(s, t.Evict) for s in kinds):
        base = "evict_rows"
    elif any(isinstance(s, t.Attend) for s in kinds):
        base = "select_rows"
    elif any(isinstance(s, t.Move) for s in kinds):
        base = "move_rows"
    else:
        base = "update_" + "_and_".join(dict.fromkeys(states))
        base = base if len(base) <= 60 else "update_states"
    name, n = base, 2
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    taken.add(name)
    return name


def lower_summaries(names: Names) -> tuple[SummaryPlan, ...]:
    return tuple(_summary(item, names) for item in names.summaries.values())


def _summary(item: t.Summary, names: Names) -> SummaryPlan:
    scope = Scope(names, ("finish_step",))
    value = expressions.lower(item.value, scope)
    letters = canonical({str(i.name) for i in item.target.indices})
    return SummaryPlan(item.target.name.text, letters, item.dtype.name.text, value, item.span.line)
