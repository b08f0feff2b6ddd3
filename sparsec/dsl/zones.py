"""S605, S606, S609, S608: zones as a whole.

A zone that stores codes must decode what was moved into it; the first zone receives new rows one by one; a zone that
nothing moves into is dead; all zones read keys by one rule of positions.
"""

from __future__ import annotations

from sparsec.dsl import tree as t
from sparsec.dsl.blocks import block_stores, decoded_parts, moved_parts
from sparsec.dsl.context import Context
from sparsec.dsl.paths import all_places, references, text_of

_BY_POS = t.Ref(t.Ident("pos"), (t.Ref(t.Ident("t")),))


def check_zones(ctx: Context) -> None:
    zones = ctx.method.of(t.Zone)
    moves = [place.stmt for place in all_places(ctx.method) if isinstance(place.stmt, t.Move)]
    for index, zone in enumerate(zones):
        into = [move for move in moves if move.zone.text == zone.name.text]
        if index == 0:
            _check_first(ctx, zone)
        elif not into and ctx.strict and not ctx.reported("S107"):
            message = f"nothing moves rows into zone `{zone.name}`"
            ctx.report("S608", zone.name, message, f"write `move ... to {zone.name}` in a hook, or remove the zone")
        if index == 0:
            _check_complete(ctx, zone, {"K", "V"})
        elif into:
            _check_complete(ctx, zone, set().union(*(moved_parts(move) for move in into)))
    _check_position_rule(ctx, zones)


def _check_first(ctx: Context, zone: t.Zone) -> None:
    for store, block in block_stores(zone, ctx):
        length = text_of(block, ctx)
        message = f"`{zone.name}` receives new rows one by one, but `{store.target.name}` packs blocks of {length} rows"
        ctx.report("S609", store, message, "declare a raw zone before it, and move whole blocks from there")


def _check_complete(ctx: Context, zone: t.Zone, needed: set[str]) -> None:
    """A zone without stores keeps raw K and V; with stores it holds nothing else."""
    if not zone.stores:
        return
    decoded = set().union(*(decoded_parts(decode.target.name.text) for decode in zone.decodes))
    missing = sorted(needed - decoded)
    if missing:
        parts = " and ".join(f"`{part}`" for part in missing)
        message = f"zone `{zone.name}` takes in {parts} of its rows but does not decode {'them' if len(missing) > 1 else 'it'}"
        ctx.report("S605", zone.name, message, _decode_help(missing[0], len(needed) > 1))
    for decode in zone.decodes:
        own = decode.target.name.text
        culprit = next((ref for ref in references(decode.value) if ref.name.text == own), None)
        if culprit is not None and decoded_parts(own) and not _of_other_row(culprit, decode):
            message = f"`{own}` of zone `{zone.name}` is decoded from itself: a zone that stores codes holds no raw `{own}`"
            ctx.report("S605", culprit, message, f"add a store: `store raw[t, h, c]: model = {own}[t, h, c]`")


def _of_other_row(ref: t.Ref, decode: t.Decode) -> bool:
    """`KV_raw[ref[t, n], x]` reads rows of another zone."""
    return ref.indices != decode.target.indices


def _decode_help(part: str, whole: bool) -> str:
    add = f"add `decode {part}[t, h, c] = ...`; to keep it exact: `store raw[t, h, c]: model = {part}[t, h, c]`"
    return f"{add}, or move only the other part (`move K of ...`)" if whole and part == "V" else add


def _check_position_rule(ctx: Context, zones: tuple[t.Zone, ...]) -> None:
    rules = [(zone, *_position_rule(zone)) for zone in zones]
    for zone, rule, where in rules[1:]:
        first, first_rule, _ = rules[0]
        if set(rule) != set(first_rule):
            ours, theirs = _words(ctx, rule), _words(ctx, first_rule)
            message = f"zone `{zone.name}` reads keys at {ours}, but zone `{first.name}` at {theirs}"
            ctx.report("S606", where, message, "all zones of a method use one position rule: decode both alike")


def _position_rule(zone: t.Zone) -> tuple[tuple[t.Expr, ...], t.Node]:
    """The positions that keys are rotated to, and where the zone says so; `pos[t]` unless it rotates them itself."""
    for decode in zone.decodes:
        if decode.target.name.text == "K":
            ropes = [node for node in t.walk(decode.value) if isinstance(node, t.Call) and node.name.text == "rope"]
            found = tuple(rope.args[1] for rope in ropes if len(rope.args) == 2)
            if found:
                return found, ropes[0]
    return (_BY_POS,), zone.name


def _words(ctx: Context, rule: tuple[t.Expr, ...]) -> str:
    return " or ".join("`pos[t]`" if part is _BY_POS else f"`{text_of(part, ctx)}`" for part in rule)
