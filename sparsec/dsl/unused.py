"""W801 to W803: params, lets and other declarations that nothing reads.

A state that nothing reads is an error (`rules.py`), since keeping it costs memory.
"""

from __future__ import annotations

from sparsec.diagnostics import Fix, Severity
from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.cost import names_page
from sparsec.dsl.paths import references

_KINDS = {t.Param: "param", t.Weight: "weight", t.Layers: "layers", t.Summary: "summary", t.Domain: "domain"}


def warn(ctx: Context, code: str, where: t.Node, message: str, helps: str, fixes: tuple[Fix, ...] = ()) -> None:
    ctx.report(code, where, message, helps, fixes, Severity.WARNING)


def check_unused(ctx: Context) -> None:
    """Report every W801 to W803 finding of the method."""
    used = _used_names(ctx)
    for item in ctx.method.items:
        kind, ident = _KINDS.get(type(item)), _declared(item)
        if kind is None or ident is None or ident.text in used:
            continue
        if isinstance(item, t.Param):
            _check_unused_param(ctx, ident)
        else:
            warn(ctx, "W803", ident, f"{kind} `{ident}` has no effect: nothing reads it", "use it or remove it")
    for node in t.walk(ctx.method):
        if isinstance(node, t.Let) and node.target.name.text not in used:
            name = node.target.name
            warn(ctx, "W802", name, f"`{name}` is defined but nothing reads it", "use it or remove it")


def _check_unused_param(ctx: Context, ident: t.Ident) -> None:
    """A page size needs no reader where pages have a meaning."""
    if ident.text != "page_size":
        warn(ctx, "W801", ident, f"param `{ident}` has no effect: nothing reads it", "use it or remove it")
    elif not any(names_page(ctx, node) for node in t.walk(ctx.method)):
        message = "param `page_size` changes no result of this method"
        warn(ctx, "W801", ident, message, "write `schedule { page_size = ... }`: a matter of speed alone")


def _declared(item: t.Item) -> t.Ident | None:
    if isinstance(item, t.Summary):
        return item.target.name
    if isinstance(item, t.Domain):
        return item.letter
    return item.name if isinstance(item, t.Param | t.Weight | t.Layers) else None


def _used_names(ctx: Context) -> set[str]:
    """Every name that an expression reads; declared and assigned names are no reads, their index letters are."""
    targets = {id(node.target) for node in t.walk(ctx.method) if isinstance(node, t.Let | t.Assign | t.Summary | t.State)}
    choices = [param for param in ctx.method.of(t.Param) if param.unit.text == "choice"]
    targets |= {id(word) for param in choices for word in references(param)}
    used: set[str] = set()
    for node in t.walk(ctx.method):
        if isinstance(node, t.Ref) and id(node) not in targets and not _is_word(ctx, node):
            used.add(node.name.text)
        elif isinstance(node, t.Binder):
            used.add(node.letter.text)
        elif isinstance(node, t.Weight):
            used |= {letter.text for letter in node.letters}
    return used


def _is_word(ctx: Context, ref: t.Ref) -> bool:
    """A value of a choice reads nothing, whatever its name."""
    symbol = ctx.symbol_of(ref)
    return symbol is not None and symbol.kind in ("choice_value", "word")
