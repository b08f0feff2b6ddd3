"""S410: evictions from a zone that stores codes of whole blocks along the token axis drop whole blocks.

A block shares one scale, so half of it cannot go. What is kept is read as one of four relations to the rows of such a zone:
all of them, none of them, whole blocks of them, or not known. The rows to keep must be all, none or whole blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparsec.dsl import tree as t
from sparsec.dsl.blocks import block_stores, resolved
from sparsec.dsl.context import Context
from sparsec.dsl.paths import all_places, text_of
from sparsec.dsl.static import provably_multiple

_LEN = t.Ref(t.Ident("len"))


class _Part(Enum):
    """What a set holds of a zone."""

    ALL = "all of its rows"
    NONE = "none of its rows"
    BLOCKS = "whole blocks"
    UNKNOWN = "not known"


def check_block_evictions(ctx: Context) -> None:
    """Report every `evict` that may break a block."""
    evicts = [place.stmt for place in all_places(ctx.method) if isinstance(place.stmt, t.Evict)]
    moves = [place.stmt for place in all_places(ctx.method) if isinstance(place.stmt, t.Move)] if evicts else []
    split = any(move.component is not None for move in moves)
    filled = {move.zone.text for move in moves}
    for zone in ctx.method.of(t.Zone):
        for store, block in block_stores(zone, ctx) if zone.name.text in filled else ():
            holder = _Holder(ctx, zone, block, split)
            for evict in evicts:
                if not ctx.failed(evict) and not ctx.failed(zone) and holder.kept(evict.keep) is _Part.UNKNOWN:
                    _report(ctx, evict, zone, store, block)


def _report(ctx: Context, evict: t.Evict, zone: t.Zone, store: t.Store, block: t.Expr) -> None:
    length, name = text_of(block, ctx), zone.name.text
    message = f"`{store.target.name}` of zone `{name}` packs blocks of {length} rows, but this eviction may break one"
    helps = f"drop whole blocks, oldest first: `evict keep all - oldest(n // {length} * {length})`, or keep the zone: `evict keep {name} | ...`"
    ctx.report("S410", evict, message, helps)


@dataclass(frozen=True, slots=True)
class _Holder:
    """One zone of blocks. split: K and V of a row may lie in different zones, and a zone's name means both."""

    ctx: Context
    zone: t.Zone
    block: t.Expr
    split: bool

    def kept(self, ranking: t.Ranking) -> _Part:
        """Of the rows that an eviction keeps; a later step takes nothing of what is kept already."""
        found = [self.of(step) for step in ranking.steps]
        return _Part.ALL if found[0] is _Part.ALL else _union(found)

    def of(self, rows: t.Expr) -> _Part:
        rows = resolved(self.ctx, rows)
        match rows:
            case t.Ref():
                return self._named(rows)
            case t.Binary(op="|", left=left, right=right):
                return _union([self.of(left), self.of(right)])
            case t.Binary(op="&", left=left, right=right):
                return _common(self.of(left), self.of(right))
            case t.Binary(op="-", left=left, right=right):
                return _without(self.of(left), self.of(right))
            case t.Call(name=t.Ident(text="where"), args=(_, left, right)):
                return _either(self.of(left), self.of(right))
            case t.Call():
                return self._builder(rows)
            case t.Reduce(binders=(t.Binder(within=within), *_)) if within is not None:
                return _Part.NONE if self.of(within) is _Part.NONE else _Part.UNKNOWN
        return _Part.UNKNOWN

    def _named(self, ref: t.Ref) -> _Part:
        word = ref.name.text
        if word in ("all", "none"):
            return _Part.ALL if word == "all" else _Part.NONE
        if self.ctx.type_of(ref).kind != "zone" or self.split:
            return _Part.UNKNOWN
        return _Part.ALL if word == self.zone.name.text else _Part.NONE

    def _builder(self, call: t.Call) -> _Part:
        name, args = call.name.text, call.args
        if name not in ("oldest", "sink", "recent") or not args:
            return _Part.UNKNOWN
        if len(args) == 2:
            own = isinstance(args[1], t.Ref) and args[1].name.text == self.zone.name.text
            if self.split or own and (name != "oldest" or not self._is_multiple(args[0])):
                return _Part.UNKNOWN
            return _Part.BLOCKS if own else _Part.NONE
        cut = t.Binary("-", _LEN, args[0]) if name == "recent" else args[0]
        return _Part.BLOCKS if self._is_multiple(cut) and self._begins_at_a_block() else _Part.UNKNOWN

    def _is_multiple(self, count: t.Expr) -> bool:
        return provably_multiple(count, self.block, self.ctx)

    def _begins_at_a_block(self) -> bool:
        """Whether the zone's first row has a whole number of blocks before it: it is the oldest zone, or all older ones hold such blocks."""
        zones = self.ctx.method.of(t.Zone)
        older = zones[zones.index(self.zone) + 1 :]
        blocks = [[block for _, block in block_stores(zone, self.ctx)] for zone in older]
        return all(any(self._is_multiple(block) for block in found) and not self.split for found in blocks)


def _union(found: list[_Part]) -> _Part:
    if _Part.ALL in found:
        return _Part.ALL
    if _Part.UNKNOWN in found:
        return _Part.UNKNOWN
    return _Part.BLOCKS if _Part.BLOCKS in found else _Part.NONE


def _common(left: _Part, right: _Part) -> _Part:
    if _Part.NONE in (left, right):
        return _Part.NONE
    if _Part.UNKNOWN in (left, right):
        return _Part.UNKNOWN
    return _Part.ALL if left is right is _Part.ALL else _Part.BLOCKS


def _without(left: _Part, right: _Part) -> _Part:
    if left is _Part.NONE or right is _Part.ALL:
        return _Part.NONE
    if right is _Part.NONE:
        return left
    return _Part.UNKNOWN if _Part.UNKNOWN in (left, right) else _Part.BLOCKS


def _either(left: _Part, right: _Part) -> _Part:
    if left is right:
        return left
    return _Part.UNKNOWN if _Part.UNKNOWN in (left, right) else _Part.BLOCKS
