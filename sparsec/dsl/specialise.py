"""A method with its static params replaced by values and folded: the only input of graph, facts and code.

Spans are kept, so everything made from the result still cites lines of the user's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.fold import fold, truth
from sparsec.dsl.phases import PROMPT_END, only_at_prompt_end

StaticValue = int | float | bool | str | t.Expr

STATIC_UNITS = ("choice", "bool", "bits", "layer_set")


def static_params(method: t.Method) -> frozenset[str]:
    """Names of the params whose value changes what is compiled, as docs/internals.md defines them."""
    params = {p.name.text: p for p in method.of(t.Param)}
    found = {name for name, p in params.items() if p.unit.text in STATIC_UNITS or name == "page_size"}
    for node in _compiled_in(method):
        found |= _names(node) & params.keys()
    todo = list(found)
    while todo:
        new = (_names(params[todo.pop()].default) & params.keys()) - found
        found |= new
        todo.extend(new)
    return frozenset(found)


def _compiled_in(method: t.Method) -> list[t.Node]:
    """The places where a param decides layout, widths or which layers run."""
    places: list[t.Node] = [*method.of(t.Zone), *method.of(t.Domain), *method.of(t.Weight), *method.of(t.Layers)]
    places += [node for item in method.items for node in t.walk(item) if isinstance(node, t.Dtype)]
    places += [hook.layers for hook in method.of(t.Hook) if hook.layers is not None]
    places += [entry.value for schedule in method.of(t.Schedule) for entry in schedule.entries]
    hooks = [_with_plain_widths(hook) for hook in method.of(t.Hook)]
    widths = (node for item in (*method.items, *hooks) for node in t.walk(item) if isinstance(node, t.Keyword))
    return places + [keyword.value for keyword in widths if keyword.name.text == "width"]


def _with_plain_widths(hook: t.Hook) -> t.Hook:
    """The hook with every let that a `width =` reads written out there, since a width is compiled in."""
    return replace(hook, body=_plain_body(hook.body, {}))


def _plain_body(body: tuple[t.Stmt, ...], outer: Mapping[str, t.Expr]) -> tuple[t.Stmt, ...]:
    lets = dict(outer)
    done: list[t.Stmt] = []
    for stmt in body:
        if isinstance(stmt, t.Branch):
            then, otherwise = _plain_body(stmt.then, lets), _plain_body(stmt.otherwise, lets)
            done.append(replace(stmt, condition=_plain(stmt.condition, lets, False), then=then, otherwise=otherwise))
            continue
        done.append(_plain(stmt, lets, False))
        if isinstance(stmt, t.Let) and not stmt.target.indices:
            lets[stmt.target.name.text] = _plain(stmt.value, lets, True)
    return tuple(done)


def _plain(node: t.Node, lets: Mapping[str, t.Expr], inside: bool) -> t.Node:
    """`inside`: the node is part of a width."""
    if inside and isinstance(node, t.Ref) and not node.indices and node.name.text in lets:
        return lets[node.name.text]
    inside = inside or isinstance(node, t.Keyword) and node.name.text == "width"
    changed: dict[str, object] = {}
    for entry in fields(node):
        part = getattr(node, entry.name)
        if isinstance(part, t.Node):
            changed[entry.name] = _plain(part, lets, inside)
        elif isinstance(part, tuple) and any(isinstance(item, t.Node) for item in part):
            changed[entry.name] = tuple(_plain(item, lets, inside) if isinstance(item, t.Node) else item for item in part)
    return replace(node, **changed) if any(value is not getattr(node, name) for name, value in changed.items()) else node


def _names(node: t.Node) -> set[str]:
    return {n.name.text for n in t.walk(node) if isinstance(n, t.Ref) and not n.indices}


def specialise(checked: Checked, static_values: Mapping[str, StaticValue]) -> t.SparseFile:
    """The file with static params replaced by `static_values` (all of them must be given) and constants folded."""
    missing = static_params(checked.method) - static_values.keys()
    assert not missing, f"no value for static params {sorted(missing)}"
    method = checked.method
    kept: list[t.Item] = []
    for item in method.items:
        if isinstance(item, t.Param) and item.name.text in static_values:
            continue
        item = _with_plain_widths(item) if isinstance(item, t.Hook) else item
        kept.extend(_item(substitute(item, static_values)))
    return replace(checked.file, method=replace(method, items=tuple(kept)))


def literal(value: StaticValue, span: t.Span = t.NOWHERE) -> t.Expr:
    """The expression that writes a value."""
    if isinstance(value, t.Expr):
        return value
    if isinstance(value, bool):
        return t.Ref(t.Ident("true" if value else "false"), span=span)
    if isinstance(value, str):
        return t.Ref(t.Ident(value), span=span)
    number = t.Int(abs(value), span=span) if isinstance(value, int) else t.Float(repr(abs(float(value))), span=span)
    return t.Unary("-", number, span=span) if value < 0 else number


def substitute(node: t.Node, values: Mapping[str, StaticValue]) -> t.Node:
    """The node with names replaced by these values: children first, then the node itself folded."""
    if isinstance(node, t.Binary) and node.op in ("==", "!="):
        chosen = _choice(node, values)
        if chosen is not None:
            return literal(chosen, node.span)
    if isinstance(node, t.Ref) and not node.indices and node.name.text in values:
        return literal(values[node.name.text], node.span)
    changed = {}
    for entry in fields(node):
        value = getattr(node, entry.name)
        if isinstance(value, t.Node):
            changed[entry.name] = substitute(value, values)
        elif isinstance(value, tuple) and any(isinstance(v, t.Node) for v in value):
            changed[entry.name] = tuple(substitute(v, values) if isinstance(v, t.Node) else v for v in value)
    result = replace(node, **changed) if changed else node
    return fold(result) if isinstance(result, t.Expr) else result


def _choice(node: t.Binary, values: Mapping[str, StaticValue]) -> bool | None:
    """The truth of `param == word`, where the param is a choice with a known value."""
    for param, word in ((node.left, node.right), (node.right, node.left)):
        if not (isinstance(param, t.Ref) and isinstance(word, t.Ref)) or param.indices or word.indices:
            continue
        value = values.get(param.name.text)
        if isinstance(value, str):
            other = values.get(word.name.text, word.name.text)
            return (value == other) is (node.op == "==")
    return None


def _item(item: t.Item) -> tuple[t.Item, ...]:
    """The item without branches that never run; nothing where it never runs itself."""
    if isinstance(item, t.Ensure):
        return () if truth(item.condition) is True else (item,)
    if not isinstance(item, t.Hook):
        return (item,)
    if truth(item.layers) is False or truth(item.when) is False:
        return ()
    item = _narrowed(item)
    body = tuple(part for stmt in item.body for part in _stmt(stmt))
    if not body:
        return ()
    layers = None if truth(item.layers) is True else item.layers
    when = None if truth(item.when) is True else item.when
    return (replace(item, layers=layers, when=when, body=body),)


def _narrowed(hook: t.Hook) -> t.Hook:
    """`on end_of_prompt, finish_step` without finish_step where a flag keeps the rule from every other step; flags are constants then."""
    if not only_at_prompt_end(tuple(name.text for name in hook.names), hook.when):
        return hook
    names = tuple(name for name in hook.names if name.text == "end_of_prompt")
    return replace(substitute(hook, dict(PROMPT_END.flags)), names=names)


def _stmt(stmt: t.Stmt) -> tuple[t.Stmt, ...]:
    if not isinstance(stmt, t.Branch):
        return (stmt,)
    then = tuple(part for inner in stmt.then for part in _stmt(inner))
    otherwise = tuple(part for inner in stmt.otherwise for part in _stmt(inner))
    known = truth(stmt.condition)
    if known is not None:
        return then if known else otherwise
    return (replace(stmt, then=then, otherwise=otherwise),)
