"""The sets of a spec that positions alone decide, as spans of the rows that a layer and head hold; what scores decide is no span."""

from __future__ import annotations

from sparsec.dsl import tree as t
from sparsec.graph import spans as positional
from sparsec.graph.host import host_known
from sparsec.graph.program import Effect, Program, Rule
from sparsec.graph.spans import LEN, Spans, call, name, number, plus


class Places:
    """The sets that one effect reads. Rows that move are counted by zone, and not here."""

    def __init__(self, program: Program, rule: Rule, effect: Effect) -> None:
        self.program, self.scope, self.effect = program, rule, effect

    def known(self, expr: t.Expr) -> bool:
        return host_known(expr, self.program, self.scope)

    def spans(self, expr: t.Expr) -> Spans | None:
        """The set as spans of the rows held, or None."""
        if isinstance(self.effect.stmt, t.Move):
            return None
        match expr:
            case t.Ref():
                return self._named_spans(expr)
            case t.Call(name=t.Ident(text=word)) if expr.args and self.known(expr.args[0]):
                return self._built_spans(word, expr.args)
            case t.Binary(op="|" | "&" | "-" as op, left=left, right=right):
                one, other = self.spans(left), self.spans(right)
                if one is None or other is None:
                    return None
                return one + other if op == "|" else (positional.common if op == "&" else positional.without)(one, other)
        return None

    def _named_spans(self, ref: t.Ref) -> Spans | None:
        word = ref.name.text
        let = self.program.let(self.scope, word)
        if let is not None:
            return self.spans(let.value) if word not in self.effect.stale else None
        if word == "open_page" and isinstance(self.effect.stmt, t.Evict):
            page = name("page_size")
            full = t.Binary("*", t.Binary("//", t.Binary("-", LEN, number(1)), page), page)
            return (positional.newest(call("max", number(0), t.Binary("-", LEN, full))),)
        if word in ("all", "none"):
            return (positional.ALL,) if word == "all" else ()
        zone = self._zone_span(ref)
        return None if zone is None else (positional.between(*zone),)

    def _built_spans(self, word: str, args: tuple[t.Expr, ...]) -> Spans | None:
        makers = {"sink": positional.oldest, "oldest": positional.oldest, "recent": positional.newest, "every": positional.every}
        if word not in makers:
            return None
        if len(args) == 1:
            return (makers[word](args[0]),)
        zone = self._zone_span(args[1])
        if zone is None or word == "every":
            return None
        low, high = zone
        if word == "recent":
            return (positional.between(call("max", low, t.Binary("-", high, args[0])), high),)
        return (positional.between(low, call("min", plus(low, args[0]), high)),)

    def _zone_span(self, ref: t.Expr) -> tuple[t.Expr, t.Expr] | None:
        """First row and end of a zone among the rows held, the last declared zone first; None where K and V move apart."""
        zones = [zone.name.text for zone in self.program.zones]
        moves = [effect.stmt for _, effect in self.program.effects(t.Move)]
        if not isinstance(ref, t.Ref) or ref.name.text not in zones or any(move.component is not None for move in moves):
            return None
        low: t.Expr = number(0)
        for zone in reversed(zones[zones.index(ref.name.text) + 1 :]):
            low = plus(low, call("rows", name(zone), name("K")))
        return low, (LEN if len(zones) == 1 else plus(low, call("rows", ref, name("K"))))

    def without(self, rows: t.Expr, taken: tuple[t.Expr, ...]) -> Spans | None:
        left = self.spans(rows)
        for one in taken:
            cut = self.spans(one)
            left = positional.without(left, cut) if left is not None and cut is not None else None
        return left
