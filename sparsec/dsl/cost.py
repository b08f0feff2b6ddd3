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
from sparsec.dsl.static import provably_leq

_HEADS = {"kv_head", "group"}
_WIDE = {"kv_width", "hidden_width"}  # a width holds all heads
_TERMS = {"token": "len", "page": "len / page_size", "kv_head": "kv_heads", "channel": "head_dim", "layer": "n_layers"}
_SLOTS = {"heads": 1, "dim": 1}  # factors that attention itself has beside len


@dataclass(frozen=True, slots=True)
class Slow:
    """A statement above the bound: the outermost reduction that exceeds it, and the term of the costliest one."""

    hook: str
    where: t.Expr
    term: str


def check_cost(ctx: Context) -> None:
    """Report every S7xx finding of the method."""
    _check_schedule(ctx)
    if not any(_is_true(entry) for entry in quadratic_entries(ctx)):
        for slow in slow_statements(ctx):
            _report(ctx, slow)


def slow_statements(ctx: Context) -> Iterator[Slow]:
    """Statements of decode hooks that cost more than attention, whether allowed or not."""
    for hook in ctx.method.of(t.Hook):
        name = next((name.text for name in hook.names if _is_decode(name.text)), None)
        for place in places(hook) if name is not None else ():
            found = [(node, loops) for node, loops in _costs(ctx, place.stmt, ()) if _exceeds(ctx, loops)]
            if found:
                most = max((_counted(loops) for _, loops in found), key=len)
                term = " * ".join(_TERMS.get(loop.domain, loop.domain) for loop in sorted(most, key=_term_order))
                yield Slow(name, found[0][0], term)


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
    entry = seen.get("page_size")
    if entry is not None and not ctx.failed(entry.value):
        _check_scheduled_size(ctx, entry)
    paged = next((node for node in t.walk(ctx.method) if names_page(ctx, node)), None)
    if paged is not None and ctx.strict:  # a specialised method has its page size as a number
        _check_page_size(ctx, paged, entry)


def _check_scheduled_size(ctx: Context, entry: t.Entry) -> None:
    """It is compiled in, and it has one place."""
    param = _page_size_param(ctx)
    if param is not None:
        message = f"the page size of this method is a param: line {param.span.line} declares it"
        ctx.report("S702", entry, message, "remove one of the two: a param where pages change results, `schedule` elsewhere")
    foreign = next((ref for ref in references(entry.value) if not _is_param(ctx, ref)), None)
    if foreign is not None:
        message = f"the page size is compiled in, but `{foreign.name}` is known only when a model runs"
        ctx.report("S705", entry.value, message, "use a number or a param")
    elif not provably_leq(t.Int(1), entry.value, ctx):
        message = f"a page of `{text_of(entry.value, ctx)}` rows is not provably at least 1"
        ctx.report("S705", entry.value, message, "give a number of rows, e.g. `page_size = 32`")


def _is_param(ctx: Context, ref: t.Ref) -> bool:
    symbol = ctx.symbol_of(ref)
    return symbol is None or symbol.kind in ("param", "choice_value")


def _page_size_param(ctx: Context) -> t.Param | None:
    return next((param for param in ctx.method.of(t.Param) if param.name.text == "page_size"), None)


def _check_page_size(ctx: Context, paged: t.Node, entry: t.Entry | None) -> None:
    """Where pages have a meaning, their size changes results and is a param."""
    declared = _page_size_param(ctx) is not None
    if entry is not None and not declared:
        size = text_of(entry.value, ctx)
        message = f"the page size changes what this method computes (`{text_of(paged, ctx)}` at line {paged.span.line})"
        ctx.report("S702", entry, message, f"remove it here and declare `param page_size: tokens in {{{size}}} = {size}`")
    elif not declared:
        message = f"`{text_of(paged, ctx)}` depends on the page size, and this method declares none"
        ctx.report("S704", paged, message, "add `param page_size: tokens in {16, 32, 64} = 16`")


def names_page(ctx: Context, node: t.Node) -> bool:
    """Does this node, leaving out its children, depend on how large a page is?"""
    if isinstance(node, t.Ref):
        return ctx.letters.get(node.name.text) == "page" or node.name.text == "open_page"
    if isinstance(node, t.Binder):
        return ctx.letters.get(node.letter.text) == "page"
    return isinstance(node, t.Call) and node.name.text in ("pages", "pages_for", "tokens")


def quadratic_entries(ctx: Context) -> list[t.Entry]:
    return [entry for entry in _entries(ctx) if entry.name.text == "allow_quadratic"]


def _is_true(entry: t.Entry) -> bool:
    return isinstance(entry.value, t.Ref) and entry.value.name.text == "true"


# ---- cost of an expression -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loop:
    """One letter that an expression runs over. `inside`: the page or group that its values are drawn from."""

    letter: str
    domain: str
    bounded: bool = False
    inside: str | None = None


def _report(ctx: Context, slow: Slow) -> None:
    message = f"`{text_of(slow.where, ctx)}` costs O({slow.term}) in `{slow.hook}`, more than attention's O(len * heads * dim)"
    helps = "run one letter over a bounded set, e.g. `s in recent(64)`, or write `schedule { allow_quadratic = true }`"
    ctx.report("S701", slow.where, message, helps)


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
        domains = {letter: ctx.letters.get(letter, letter) for letter in sorted(free)}
        yield node, tuple(inner.get(letter) or _Loop(letter, domains[letter], letter in new_rows) for letter in domains)
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
    step = {tensor.name for tensor in names.TENSORS.values() if tensor.source == "step"}
    indices = (index for ref in references(node) if ref.name.text in step for index in ref.indices)
    return {index.name.text for index in indices if isinstance(index, t.Ref)} & {"t", "s"}


def _is_group(ctx: Context, name: str) -> bool:
    symbol = ctx.symbols.get(ctx.letters.get(name, ""))
    is_group = symbol is not None and isinstance(symbol.item, t.Domain) and symbol.item.kind == "groups"
    return is_group or ctx.letters.get(name) == "page"


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
    own = (*_HEADS, *_WIDE, "channel", "token", "page", "layer")
    others = sum(1 for loop in counted if loop.domain not in own and not _is_group(ctx, loop.letter))
    free_slots = max(0, _SLOTS["heads"] - heads) + max(0, _SLOTS["dim"] - dim)
    return heads > _SLOTS["heads"] or dim > _SLOTS["dim"] or others > free_slots
