"""Rows held and read as formulas that people can read, over prompt, new, chunk and the method's params.

`prompt` and `new` count tokens, `chunk` is the prefill chunk. Where heads hold different numbers the formula is their
average. `capacity.py` computes the same numbers by simulation; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsec.dsl import tree as t
from sparsec.dsl.phases import CHUNK, DECODE, PROMPT_END, Phase, can_fire, conjuncts, fold
from sparsec.dsl.specialise import substitute
from sparsec.graph.counts import CountRule
from sparsec.graph.spans import KV_HEADS, LEN, call, name, number, plus
from sparsec.graph.program import Program
from sparsec.graph.simplify import Simplifier
from sparsec.graph.text import text

PROMPT, NEW, CHUNK_SIZE, TOTAL = name("prompt"), name("new"), name("chunk"), name("total")
_SHORT, _LONG = 24, 80  # characters: a let with a longer value keeps its name in a formula


@dataclass(frozen=True, slots=True)
class RowFormula:
    """Rows of one KV head of one layer, of one part ("K", "V", or "KV" for whole rows) in one zone ("" for all zones).

    what: "prompt peak", "after prompt", "decode peak", "flushed" (after a step's moves, `total` tokens in) or "read"
    (rows that attention reads in a decode step, in `layers`). where: lets that the formula names.
    """

    what: str
    zone: str
    part: str
    rows: str
    exact: bool
    line: int | None
    where: tuple[str, ...] = ()
    layers: str | None = None


def row_formulas(program: Program, counts: tuple[CountRule, ...], reads: tuple[CountRule, ...]) -> tuple[RowFormula, ...]:
    return Formulas(program, counts, reads).all()


class Formulas:
    def __init__(self, program: Program, counts: tuple[CountRule, ...], reads: tuple[CountRule, ...]) -> None:
        self.program, self.reads = program, reads
        self.evicts = tuple(rule for rule in counts if rule.action == "evict")
        self.moves = tuple(rule for rule in counts if rule.action == "move")
        self.simplify = Simplifier(program.params)

    def all(self) -> tuple[RowFormula, ...]:
        zones = self.program.zones if self.moves and not self.evicts else ()
        flushed = [formula for zone in zones for formula in self._zone(zone.name.text)]
        return (*self._held(), *flushed, *self._read())

    def _held(self) -> tuple[RowFormula, ...]:
        """Rows over all zones: the peak during the prompt, right after it, and the most that decoding holds."""
        in_prompt, at_end, decoding = (_first(self.evicts, phase) for phase in (CHUNK, PROMPT_END, DECODE))
        peak = call("min", PROMPT, plus(_limit(in_prompt, CHUNK), CHUNK_SIZE)) if in_prompt else PROMPT
        after = call("min", PROMPT, _replaced(_limit(at_end, PROMPT_END), LEN, PROMPT)) if at_end else PROMPT
        most = plus(after, NEW)
        if decoding:
            held = self._high_water(decoding) if at_end else call("max", self._high_water(decoding), plus(PROMPT, number(1)))
            most = call("min", plus(PROMPT, NEW), held)
        return (
            self._formula("prompt peak", peak, in_prompt),
            self._formula("after prompt", after, at_end),
            self._formula("decode peak", most, decoding or at_end),
        )

    def _formula(self, what: str, rows: t.Expr, rule: CountRule | None, **place: str | None) -> RowFormula:
        lets = rule.lets if rule is not None else ()
        rows = self.simplify(_written_out(rows, lets, _SHORT))
        named = _named(rows, lets)
        return RowFormula(
            what,
            place.get("zone") or "",
            place.get("part") or "KV",
            text(rows),
            rule is None or rule.exact,
            rule.line if rule is not None else None,
            tuple(f"{let.target.name} = {text(let.value)}" for let in named),
            place.get("layers"),
        )

    def _high_water(self, rule: CountRule) -> t.Expr:
        """The most rows that decoding reaches: the largest bound among `len >= X` and `len > X` in the guard."""
        bounds = [bound for part in conjuncts(fold(rule.when, DECODE)) if (bound := _lower_bound(part)) is not None]
        kept = _limit(rule, DECODE)
        return call("max", kept, *bounds) if bounds else plus(kept, number(1))

    def _read(self) -> list[RowFormula]:
        rules = [rule for rule in self.reads if can_fire(rule.hooks, rule.when, DECODE)]
        place = [text(rule.layers) if rule.layers is not None else None for rule in rules]
        return [self._formula("read", call("min", LEN, _limit(rule, DECODE)), rule, layers=where) for rule, where in zip(rules, place, strict=True)]

    def _zone(self, zone: str) -> list[RowFormula]:
        """What the moves of a step leave in the first zone, and what they have put into the others."""
        first = self.program.zones[0].name.text
        formulas = []
        for part in ("K", "V"):
            rule = next((r for r in self.moves if part in r.parts and r.source == first and can_fire(r.hooks, r.when, DECODE)), None)
            if rule is None or zone not in (first, rule.zone):
                continue
            moved = _totals(_written_out(rule.rows, rule.lets, _LONG), first)
            rows = moved if zone == rule.zone else t.Binary("-", TOTAL, self.simplify(moved))
            formulas.append(self._formula("flushed", rows, rule, zone=zone, part=part))
        return formulas


def _first(rules: tuple[CountRule, ...], phase: Phase) -> CountRule | None:
    return next((rule for rule in rules if can_fire(rule.hooks, rule.when, phase)), None)


def _limit(rule: CountRule, phase: Phase) -> t.Expr:
    """Rows kept where there are enough: `budget` of `min(len, budget)`, per KV head (averaged where heads compete)."""
    rows = substitute(rule.rows, dict(phase.flags))
    capped = isinstance(rows, t.Call) and rows.name.text == "min" and len(rows.args) == 2
    if capped and rows.args[0] in _WHOLE:
        rows = rows.args[1]
    if rule.per == "model":
        return t.Binary("/", rows, _ALL_HEADS)
    return _per_head(rows) if rule.per == "layer" else rows


_ALL_HEADS = t.Binary("*", KV_HEADS, name("n_layers"))
_OF_LAYER = t.Binary("*", LEN, KV_HEADS)
_WHOLE = (LEN, _OF_LAYER, t.Binary("*", _OF_LAYER, name("n_layers")))


def _per_head(rows: t.Expr) -> t.Expr:
    """A count over all heads divided by their number, term by term where that is plain."""
    match rows:
        case t.Binary(op="+" | "-"):
            return replace(rows, left=_per_head(rows.left), right=_per_head(rows.right))
        case t.Binary(op="*", left=left, right=right) if right == KV_HEADS:
            return left
        case t.Call(name=word) if word.text in ("min", "max"):
            return replace(rows, args=tuple(_per_head(arg) for arg in rows.args))
    return t.Binary("/", rows, KV_HEADS)


def _lower_bound(condition: t.Expr) -> t.Expr | None:
    """X of `len >= X`, X + 1 of `len > X`, either way round."""
    if not isinstance(condition, t.Binary):
        return None
    match condition.op, condition.left == LEN, condition.right == LEN:
        case ">=", True, _:
            return condition.right
        case ">", True, _:
            return plus(condition.right, number(1))
        case "<=", _, True:
            return condition.left
        case "<", _, True:
            return plus(condition.left, number(1))
    return None


def _written_out(expr: t.Expr, lets: tuple[t.Let, ...], limit: int) -> t.Expr:
    """The expression with every let written out whose value, lets in it written out too, stays within `limit` characters."""
    short: dict[str, t.Expr] = {}
    for let in lets:
        value = _put(let.value, short)
        if not let.target.indices and len(text(value)) <= limit:
            short[let.target.name.text] = value
    return _put(expr, short)


def _put(expr: t.Expr, values: dict[str, t.Expr]) -> t.Expr:
    for name_, value in values.items():
        expr = _replaced(expr, name(name_), value)
    return expr


def _named(rows: t.Expr, lets: tuple[t.Let, ...]) -> list[t.Let]:
    """The lets that an expression names, with those that they name in turn, in source order."""
    wanted: set[str] = set()
    todo: list[t.Node] = [rows]
    by_name = {let.target.name.text: let for let in lets}
    while todo:
        for node in t.walk(todo.pop()):
            if isinstance(node, t.Ref) and node.name.text in by_name.keys() - wanted:
                wanted.add(node.name.text)
                todo.append(by_name[node.name.text].value)
    return [let for let in lets if let.target.name.text in wanted]


def _totals(expr: t.Expr, zone: str) -> t.Expr:
    """The count with `rows(zone)` read as the tokens so far: what all moves together have taken."""
    for args in ((name(zone),), (name(zone), name("K")), (name(zone), name("V"))):
        expr = _replaced(expr, call("rows", *args), TOTAL)
    return expr


def _replaced(expr: t.Expr, old: t.Expr, new: t.Expr) -> t.Expr:
    if expr == old:
        return new
    match expr:
        case t.Call():
            return replace(expr, args=tuple(_replaced(arg, old, new) for arg in expr.args))
        case t.Binary():
            return replace(expr, left=_replaced(expr.left, old, new), right=_replaced(expr.right, old, new))
    return expr
