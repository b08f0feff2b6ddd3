"""S6xx: rules over the whole method.

The query's own row is read; every state is written and read; zones give back what they were given; one rule of
positions. Each finding stands at the declaration or statement that the author would change.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparsec.diagnostics import Fix
from sparsec.dsl import names, scopes
from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.flow import check_shared_flow
from sparsec.dsl.paths import all_places, places, references, text_of
from sparsec.dsl.sizes import PAGE, member_domain
from sparsec.dsl.visibility import holds_own, lacks_own
from sparsec.dsl.zones import check_zones

_SUMMARY_READS = frozenset({"K", "V", "K_raw", "KV_raw", "pos"})


def check_rules(ctx: Context) -> None:
    """Report every S6xx finding of the method."""
    for hook in ctx.method.of(t.Hook):
        _check_own_row(ctx, hook)
    if ctx.strict:  # what specialisation folded away may leave a state without reader or writer
        _check_state_use(ctx)
    check_shared_flow(ctx)
    check_zones(ctx)
    _check_ensure_names(ctx)
    for summary in ctx.method.of(t.Summary):
        _check_summary(ctx, summary)


# ---- the query's own row -----------------------------------------------------------------------


def _check_own_row(ctx: Context, hook: t.Hook) -> None:
    """Until a move may have taken the newest row out of it, the first zone holds that row."""
    zones = ctx.method.of(t.Zone)
    newest = zones[0].name.text if zones else None
    for place in places(hook):
        stmt = place.stmt
        if isinstance(stmt, t.Attend) and not stmt.blind:
            _check_attend(ctx, stmt, newest)
        elif isinstance(stmt, t.Move) and newest is not None and stmt.zone.text != newest:
            newest = newest if lacks_own(stmt.rows, ctx, newest) else None


def _check_attend(ctx: Context, stmt: t.Attend, newest: str | None) -> None:
    first = stmt.read.steps[0]
    known = [ctx.type_of(step).kind for step in stmt.read.steps]
    if "unknown" in known or holds_own(first, ctx, newest):
        return
    own = "open_page" if member_domain(first, ctx) == PAGE else "recent(1)"
    ranked = isinstance(first, t.Reduce)
    joined = f"{own} then {text_of(first, ctx)}" if ranked else f"{own} | {text_of(first, ctx)}"
    fixes = () if ranked or stmt.read.upto is not None else (Fix(first.span, joined),)
    message = f"`{text_of(first, ctx)}` does not provably hold the query's own row"
    ctx.report("S601", first, message, f"write `attend {joined}`, or `attend blind` if that is meant", fixes)


# ---- states ------------------------------------------------------------------------------------


def _check_state_use(ctx: Context) -> None:
    written = {p.stmt.target.name.text for p in all_places(ctx.method) if isinstance(p.stmt, t.Assign)}
    read = set(_names_read(ctx.method))
    for state in ctx.method.of(t.State):
        name = state.target.name.text
        if scopes.reserved(name) or scopes.may_be_meant(ctx, name):
            continue
        if name not in written:
            message = f"state `{name}` is never updated: it stays {text_of(state.initial, ctx)}"
            ctx.report("S602", state.target, message, "update it in a hook, or use a param or `weight` for a constant")
        if name not in read:
            message = f"state `{name}` is updated but nothing reads it" if name in written else f"state `{name}` is never read"
            ctx.report("S603", state.target, message, "read it in a set, an `evict` or an `ensure`, or remove it")


def _names_read(method: t.Method) -> Iterator[str]:
    """Names that some expression reads; a state read only by its own update is not among them."""
    for item in method.items:
        if not isinstance(item, t.Hook):
            declared = _declared_name(item)
            yield from (ref.name.text for ref in references(item) if ref is not declared)
    for hook in method.of(t.Hook):
        yield from (ref.name.text for guard in (hook.layers, hook.when) if guard for ref in references(guard))
        yield from _read_by_statements(hook.body)


def _read_by_statements(body: tuple[t.Stmt, ...]) -> Iterator[str]:
    for stmt in body:
        match stmt:
            case t.Branch():
                yield from (ref.name.text for ref in references(stmt.condition))
                yield from _read_by_statements((*stmt.then, *stmt.otherwise))
            case t.Assign(target=target, value=value):
                yield from (ref.name.text for ref in references(value) if ref.name.text != target.name.text)
            case t.Let(value=value):
                yield from (ref.name.text for ref in references(value))
            case _:
                yield from (ref.name.text for ref in references(stmt))


def _declared_name(item: t.Item) -> t.Ref | None:
    """The declared name of a state or summary, which is no read of it."""
    return item.target if isinstance(item, t.State | t.Summary) else None


# ---- ensure, summaries ---------------------------------------------------------------------------


def _check_ensure_names(ctx: Context) -> None:
    first: dict[str, t.Ensure] = {}
    for ensure in ctx.method.of(t.Ensure):
        known = first.setdefault(ensure.text, ensure)
        if known is not ensure:
            message = f"there are two properties called \"{ensure.text}\": the first is at line {known.span.line}"
            ctx.report("S607", ensure, message, "the verifier reports a property by its name: rename one")


def _check_summary(ctx: Context, summary: t.Summary) -> None:
    for ref in references(summary.value):
        name, symbol = ref.name.text, ctx.symbol_of(ref)
        if symbol is None or name in _SUMMARY_READS:
            continue
        is_changing = symbol.kind == "fact" and not names.FACTS[name].static
        if symbol.kind in ("state", "summary", "store", "tensor") or is_changing:
            message = f"summary `{summary.target.name}` reads `{name}`, but may read K, V, K_raw and pos only"
            helps = "write out its equation here" if symbol.kind == "summary" else "keep it in a `state` that a hook updates"
            ctx.report("S610", ref, message, helps)
