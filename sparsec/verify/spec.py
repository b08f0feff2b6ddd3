"""What the verifier reads off a checked method: its statements with their lines, and which of them bound what."""

from __future__ import annotations

from collections.abc import Iterator

from sparsec.dsl import tree as t

_BUILDERS = ("sink", "recent", "oldest")
_ONE = t.Int(1)
_RANKINGS = ("top", "bottom", "nucleus")


def statements(method: t.Method, kind: type[t.Stmt] | tuple[type[t.Stmt], ...]) -> tuple[t.Stmt, ...]:
    """All statements of some kinds, in source order, branches included."""
    return tuple(node for hook in method.of(t.Hook) for node in t.walk(hook) if isinstance(node, kind))


def lossy_stores(method: t.Method) -> tuple[t.Store, ...]:
    """Stores that do not keep every bit of K and V."""
    return tuple(store for zone in method.of(t.Zone) for store in zone.stores if store.dtype.name.text not in ("model", "f32"))


def is_blind(method: t.Method) -> bool:
    """Whether some `attend` may miss the query's own row on purpose."""
    return any(stmt.blind for stmt in statements(method, t.Attend))


def unbounded_by(method: t.Method, growing: frozenset[str]) -> t.Stmt | None:
    """The first evict or attend that no growing param widens: its rows cannot be all rows, whatever the params."""
    lets = {let.target.name.text: let.value for let in statements(method, t.Let)}
    lets |= {assign.target.name.text: assign.value for assign in statements(method, t.Assign)}
    for stmt in statements(method, (t.Evict, t.Attend)):
        ranking = stmt.keep if isinstance(stmt, t.Evict) else stmt.read
        bounds = [bound for step in (*ranking.steps, ranking.upto) if step is not None for bound in _bounds(step, lets)]
        if ranking.upto is not None:
            bounds.append(ranking.upto)
        if bounds and not any(_reaches(bound, growing, lets) for bound in bounds):
            return stmt
    return None


def _bounds(expr: t.Expr, lets: dict[str, t.Expr], seen: frozenset[str] = frozenset()) -> Iterator[t.Expr]:
    """Every count in a set expression, through lets and states that hold sets."""
    for node in t.walk(expr):
        if isinstance(node, t.Call) and node.name.text in _BUILDERS:
            yield node.args[0]
        elif isinstance(node, t.Call) and node.name.text == "every":
            yield _ONE  # a wider stride holds fewer rows: no size widens it
        elif isinstance(node, t.Reduce) and node.op.text in _RANKINGS and len(node.args) > 1:
            yield node.args[1]
        elif isinstance(node, t.Ref) and node.name.text in lets.keys() - seen:
            yield from _bounds(lets[node.name.text], lets, seen | {node.name.text})


def _reaches(expr: t.Expr, names: frozenset[str], lets: dict[str, t.Expr]) -> bool:
    """Whether the value of an expression depends on one of the names, directly or through lets."""
    seen: set[str] = set()
    todo: list[t.Node] = [expr]
    while todo:
        for node in t.walk(todo.pop()):
            if isinstance(node, t.Ref) and node.name.text not in seen:
                seen.add(node.name.text)
                if node.name.text in lets:
                    todo.append(lets[node.name.text])
    return bool(seen & names)
