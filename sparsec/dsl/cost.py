"""S7xx: what a decode step costs, and the `schedule` block that may allow more.

A hook that runs while decoding may cost O(len * heads * dim), as attention itself does. The cost of an expression is
the product of the domains that it loops over; a window, a budget or a model's own factors are constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparsec.dsl import names
from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.paths import places, references, text_of
from sparsec.dsl.sizes import size_bound

_HEADS = {"kv_head", "group"}
_WIDE = {"kv_width", "hidden_width"}  # a width holds all heads
_TERMS = {"token": "len", "page": "len / page_size", "kv_head": "kv_heads", "channel": "head_dim", "layer": "n_layers"}
_SLOTS = {"heads": 1, "dim": 1}  # factors that attention itself has beside len


def check_cost(ctx: Context) -> None:
    """Report every S7xx finding of the method."""
    _check_schedule(ctx)
    if _allows_quadratic(ctx):
        return
    for hook in ctx.method.of(t.Hook):
        slow = next((name.text for name in hook.names if _is_decode(name.text)), None)
        for place in places(hook) if slow is not None else ():
            _check_statement(ctx, slow, place.stmt)


def _is_decode(hook: str) -> bool:
    return hook in names.HOOKS and "decode" in names.HOOKS[hook].phases


# ---- schedule --------------------------------------------------------------------------------


def _entries(ctx: Context) -> Iterator[t.Entry]:
    return (entry for schedule in ctx.method.of(t.Schedule) for entry in schedule.entries)


def _check_schedule(ctx: Context) -> None:
    seen: dict[str, t.Entry] = {}
    for entry in _entries(ctx):
        name = entry.name.text
        first = seen.setdefault(name, entry)
        if first is not entry:
            message = f"`{name}` is scheduled twice: line {first.span.line} does it already"
            ctx.report("S703", entry, message, "remove one of the two")
    if "page_size" in seen:
        _check_page_size(ctx, seen["page_size"])


def _check_page_size(ctx: Context, entry: t.Entry) -> None:
    """Where pages have a meaning, their size changes results and is a param."""
    paged = next((node for node in t.walk(ctx.method) if _names_page(ctx, node)), None)
    if paged is not None:
        message = f"the page size changes what this method computes (`{text_of(paged, ctx)}` at line {paged.span.line})"
        size = text_of(entry.value, ctx)
        ctx.report("S702", entry, message, f"remove it here and declare `param page_size: tokens in {{{size}}} = {size}`")


def _names_page(ctx: Context, node: t.Node) -> bool:
    if isinstance(node, t.Ref):
        return ctx.letters.get(node.name.text) == "page" or node.name.text in ("open_page", "page_size")
    if isinstance(node, t.Binder):
        return ctx.letters.get(node.letter.text) == "page"
    return isinstance(node, t.Call) and node.name.text in ("pages", "pages_for", "tokens")


def _allows_quadratic(ctx: Context) -> bool:
    allowed = (entry.value for entry in _entries(ctx) if entry.name.text == "allow_quadratic")
    return any(isinstance(value, t.Ref) and value.name.text == "true" for value in allowed)


# ---- cost of an expression -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loop:
    """One letter that an expression runs over. `inside`: the page or group that its values are drawn from."""

    letter: str
    domain: str
    bounded: bool = False
    inside: str | None = None


def _check_statement(ctx: Context, hook: str, stmt: t.Stmt) -> None:
    """Report the outermost reduction that costs too much, with the term of the costliest one in the statement."""
    slow = [(node, loops) for node, loops in _costs(ctx, stmt, ()) if _exceeds(ctx, loops)]
    if not slow:
        return
    where = slow[0][0]
    most = max((_counted(loops) for _, loops in slow), key=len)
    term = " * ".join(_TERMS.get(loop.domain, loop.domain) for loop in sorted(most, key=_term_order))
    message = f"`{text_of(where, ctx)}` costs O({term}) in `{hook}`, more than attention's O(len * heads * dim)"
    helps = "run one letter over a bounded set, e.g. `s in recent(64)`, or write `schedule { allow_quadratic = true }`"
    ctx.report("S701", where, message, helps)


def _term_order(loop: _Loop) -> tuple[int, str]:
    order = tuple(_TERMS)
    return (order.index(loop.domain) if loop.domain in order else len(order), loop.letter)


def _costs(ctx: Context, node: t.Node, loops: tuple[_Loop, ...]) -> Iterator[tuple[t.Expr, tuple[_Loop, ...]]]:
    """Every reduction below a node, with the letters that it runs over: its binders and what stays free in its body."""
    if isinstance(node, t.Reduce):
        bound = tuple(_loop(ctx, binder) for binder in node.binders)
        inner = {loop.letter: loop for loop in (*loops, *bound)}
        free = frozenset().union(*(ctx.type_of(arg).free for arg in node.args)) if node.args else frozenset()
        new_rows = _letters_of_new_rows(node)
        used = [inner.get(letter) or _Loop(letter, ctx.letters.get(letter, letter), letter in new_rows) for letter in sorted(free)]
        yield node, tuple(used)
        loops = tuple(inner.values())
    for child in t.children(node):
        yield from _costs(ctx, child, loops)


def _loop(ctx: Context, binder: t.Binder) -> _Loop:
    letter, within = binder.letter.text, binder.within
    domain = ctx.letters.get(letter, letter)
    if within is None:
        return _Loop(letter, domain)
    inside = next((ref.name.text for ref in references(within) if _is_group(ctx, ref.name.text)), None)
    return _Loop(letter, domain, size_bound(within, ctx) is not None, inside)


def _letters_of_new_rows(node: t.Node) -> set[str]:
    """Tensors of the step have the new rows alone: one in decode."""
    step = (ref for ref in references(node) if ref.name.text in names.TENSORS and names.TENSORS[ref.name.text].source == "step")
    return {index.name.text for ref in step for index in ref.indices if isinstance(index, t.Ref)} & {"t", "s"}


def _is_group(ctx: Context, name: str) -> bool:
    symbol = ctx.symbols.get(ctx.letters.get(name, ""))
    return ctx.letters.get(name) == "page" or (symbol is not None and isinstance(symbol.item, t.Domain) and symbol.item.kind == "groups")


def _counted(loops: tuple[_Loop, ...]) -> list[_Loop]:
    """Loops that grow: not the query of a decode step, not a bounded set, not the pages whose rows are counted anyway."""
    inside = {loop.inside for loop in loops}
    return [loop for loop in loops if loop.domain != "query" and not loop.bounded and loop.letter not in inside]


def _exceeds(ctx: Context, loops: tuple[_Loop, ...]) -> bool:
    counted = _counted(loops)
    grows = sum(1 for loop in counted if loop.domain in ("token", "page") or _is_group(ctx, loop.letter))
    if grows != 1:
        return grows > 1
    wide = sum(1 for loop in counted if loop.domain in _WIDE)
    heads = wide + any(loop.domain in _HEADS for loop in counted)
    dim = wide + sum(1 for loop in counted if loop.domain == "channel")
    others = sum(1 for loop in counted if loop.domain not in (*_HEADS, *_WIDE, "channel", "token", "page", "layer")) - _groups(ctx, counted)
    free_slots = max(0, _SLOTS["heads"] - heads) + max(0, _SLOTS["dim"] - dim)
    return heads > _SLOTS["heads"] or dim > _SLOTS["dim"] or others > free_slots


def _groups(ctx: Context, loops: list[_Loop]) -> int:
    return sum(1 for loop in loops if loop.domain != "page" and _is_group(ctx, loop.letter))
