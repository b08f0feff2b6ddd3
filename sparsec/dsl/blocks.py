"""S408, S409: moves into a zone that stores codes of whole blocks along the token axis.

Such a zone packs B consecutive rows together, so rows arrive in multiples of B and in order. Only the parts of a row
that the blocked stores feed are bound by this: a `move V` does not touch a blocked store of keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.paths import all_places, references, text_of
from sparsec.dsl.static import provably_multiple

_BOTH = frozenset({"K", "V"})
_PARTS = {"K": frozenset("K"), "K_raw": frozenset("K"), "V": frozenset("V"), "KV_raw": _BOTH}


def check_block_moves(ctx: Context) -> None:
    zones = {zone.name.text: zone for zone in ctx.method.of(t.Zone)}
    for place in all_places(ctx.method):
        if isinstance(place.stmt, t.Move) and place.stmt.zone.text in zones:
            _check_move(ctx, place.stmt, zones[place.stmt.zone.text])


def decoded_parts(target: str) -> frozenset[str]:
    """Which of K and V a `decode` of this tensor gives back."""
    return _PARTS.get(target, frozenset())


def moved_parts(move: t.Move) -> frozenset[str]:
    return _BOTH if move.component is None else frozenset({move.component.text})


def block_stores(zone: t.Zone, ctx: Context) -> Iterator[tuple[t.Store, t.Expr]]:
    """The stores of a zone that group rows along the token axis, each with its block length."""
    for store in zone.stores:
        keywords = {word.name.text: word.value for word in store.dtype.keywords}
        along = keywords.get("along")
        if isinstance(along, t.Ref) and ctx.letters.get(along.name.text) == "token" and "block" in keywords:
            yield store, keywords["block"]


def parts_fed_by(store: t.Store, zone: t.Zone) -> frozenset[str]:
    """Which of K and V are decoded from a store; both where that is not visible."""
    name = store.target.name.text
    fed = [decoded_parts(d.target.name.text) for d in zone.decodes if any(r.name.text == name for r in references(d.value))]
    return frozenset().union(*fed) or _BOTH


def _check_move(ctx: Context, move: t.Move, zone: t.Zone) -> None:
    for store, block in block_stores(zone, ctx):
        if not parts_fed_by(store, zone) & moved_parts(move):
            continue
        if ctx.failed(move.rows) or ctx.failed(zone):
            continue
        count, length, rows = _oldest_count(ctx, move.rows), text_of(block, ctx), text_of(move.rows, ctx)
        if not _is_oldest(ctx, move.rows):
            message = f"`{zone.name}` packs blocks of {length} rows in order, but `{rows}` is not the oldest part"
            ctx.report("S409", move.rows, message, f"move `oldest(n // {length} * {length}, ZONE)`")
        elif count is None or not provably_multiple(count, block, ctx):
            message = f"`{zone.name}` packs blocks of {length} rows, but `{rows}` is not provably a multiple of {length}"
            ctx.report("S408", move.rows, message, f"round down: `oldest(n // {length} * {length}, ZONE)`")


def _oldest_count(ctx: Context, rows: t.Expr) -> t.Expr | None:
    """n of `oldest(n)` or `oldest(n, zone)`, lets looked through."""
    rows = resolved(ctx, rows)
    is_oldest = isinstance(rows, t.Call) and rows.name.text == "oldest" and rows.args
    return rows.args[0] if is_oldest else None


def _is_oldest(ctx: Context, rows: t.Expr) -> bool:
    """`oldest(...)`, or everything of a zone but its newest rows."""
    rows = resolved(ctx, rows)
    if isinstance(rows, t.Binary) and rows.op == "-":
        newest = resolved(ctx, rows.right)
        return _is_whole(ctx, rows.left) and isinstance(newest, t.Call) and newest.name.text == "recent"
    return _oldest_count(ctx, rows) is not None or _is_whole(ctx, rows)


def _is_whole(ctx: Context, rows: t.Expr) -> bool:
    rows = resolved(ctx, rows)
    return isinstance(rows, t.Ref) and (ctx.type_of(rows).kind == "zone" or rows.name.text == "all")


def resolved(ctx: Context, rows: t.Expr) -> t.Expr:
    """What a set expression is, lets looked through."""
    for _ in range(8):
        value = ctx.let_value(rows) if isinstance(rows, t.Ref) else None
        if value is None:
            return rows
        rows = value
    return rows
