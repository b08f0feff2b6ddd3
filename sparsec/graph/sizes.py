"""How many rows the sets of a spec hold, as host arithmetic; an upper bound where scores decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparsec.dsl import tree as t
from sparsec.graph import spans as positional
from sparsec.graph.places import Places
from sparsec.graph.program import SET_OPS, Effect, Program, Rule
from sparsec.graph.spans import KV_HEADS, LEN, call, name, number, plus

_COUNTED = ("sink", "recent", "oldest", "every")  # builders with a number of rows


@dataclass(frozen=True, slots=True)
class Size:
    """How many rows a set holds: an expression, whether it is exact or an upper bound, and over what the true number differs."""

    rows: t.Expr
    exact: bool
    per: str = "head"
    varies: str = ""


def _coarsest(*scopes: str) -> str:
    return min(scopes, key=("head", "layer", "").index)


class Sizes:
    """Sizes of the sets that one effect reads."""

    def __init__(self, program: Program, rule: Rule, effect: Effect) -> None:
        self.program, self.scope, self.effect = program, rule, effect
        self.places = Places(program, rule, effect)

    def ranking(self, ranking: t.Ranking) -> Size:
        """Rows of `A then B upto N`: N where the last step fills it, else the sum of the steps, never more than N or than there are."""
        last, upto = ranking.steps[-1], ranking.upto
        if upto is None:
            return self._steps(ranking.steps)
        bases = [binder.letter.text for binder in last.binders] if isinstance(last, t.Reduce) else ["t"]
        size = self._bounded(upto, bases)
        if not isinstance(last, t.Reduce) or "p" in bases:
            return replace(size, exact=False, varies=self._letter(*ranking.steps))
        if last.binders[0].within is None and len(last.args) == 1 and last.op.text in ("top", "bottom"):
            return size
        taken = self._steps(ranking.steps)
        if taken.per != size.per:
            return replace(size, exact=False)
        return replace(size, rows=call("min", taken.rows, upto), exact=size.exact and taken.exact, varies=taken.varies)

    def _steps(self, steps: tuple[t.Expr, ...]) -> Size:
        """Every step takes rows that no earlier one took."""
        size = self.size(steps[0])
        for index, step in enumerate(steps[1:], start=1):
            size = self._sum(size, self._then(steps[:index], step))
        return size

    def _then(self, earlier: tuple[t.Expr, ...], step: t.Expr) -> Size:
        """Rows that a ranking adds: of its candidates those that are left."""
        size = self.size(step)
        within = step.binders[0].within if isinstance(step, t.Reduce) and len(step.binders) == 1 else None
        if within is None or all(self._leaves_out(within, one) for one in earlier):
            return size
        left = self.places.without(within, earlier)
        rows = positional.size(left) if left is not None else None
        if rows is None or step.op.text not in ("top", "bottom"):
            return replace(size, exact=False, varies=self._letter(step))
        return self._bounded(step.args[1], ["t"], Size(rows, True)) if len(step.args) > 1 else Size(rows, True)

    def size(self, expr: t.Expr) -> Size:
        spans = self.places.spans(expr)
        rows = positional.size(spans) if spans is not None else None
        if rows is not None:
            return Size(rows, True)
        match expr:
            case t.Call(name=t.Ident(text="where"), args=(condition, yes, no)):
                return self._either(condition, self.size(yes), self.size(no))
            case t.Call():
                return self._builder(expr)
            case t.Reduce() if expr.op.text in SET_OPS:
                return self._selection(expr)
            case t.Ref():
                return self._named(expr)
            case t.Binary(op="|"):
                return self._union(expr)
            case t.Binary(op="-"):
                return self._difference(expr)
            case t.Binary(op="&"):
                left, right = self.size(expr.left), self.size(expr.right)
                return Size(call("min", left.rows, right.rows), False, varies=self._letter(expr))
        return Size(LEN, False, varies=self._letter(expr))

    def _either(self, condition: t.Expr, yes: Size, no: Size) -> Size:
        varies = _coarsest(yes.varies, no.varies)
        if yes.per != no.per:
            yes, no = self._over_heads(yes), self._over_heads(no)
        if self.places.known(condition):
            return Size(call("where", condition, yes.rows, no.rows), yes.exact and no.exact, yes.per, varies)
        own = "head" if "h" in self.program.free(condition, self.scope) else "layer"
        return Size(call("max", yes.rows, no.rows), False, yes.per, _coarsest(varies, own))

    def _letter(self, *exprs: t.Expr) -> str:
        """Over what a number of rows differs that scores decide: heads, where some ranking of them has one set per head."""
        nodes = [node for expr in exprs for node in self._written_out(expr)]
        rankings = [node for node in nodes if isinstance(node, t.Reduce) and node.op.text in SET_OPS]
        states = [node for node in nodes if isinstance(node, t.Ref) and node.name.text in self.program.states]
        counted = [node for node in nodes if isinstance(node, t.Call) and node.name.text in _COUNTED and not self.places.known(node.args[0])]
        deciding = [*rankings, *states, *counted]
        if any("h" in self.program.free(node, self.scope) for node in deciding):
            return "head"
        return "layer" if deciding else ""

    def _written_out(self, expr: t.Expr) -> Iterator[t.Node]:
        """All nodes of an expression and of the lets that it reads."""
        lets = self.program.reads(expr, self.scope)
        yield from t.walk(expr)
        for let in self.scope.lets:
            if let.target.name.text in lets:
                yield from t.walk(let.value)

    def _builder(self, expr: t.Call) -> Size:
        args = expr.args
        match expr.name.text:
            case "sink" | "recent" | "oldest" | "last" if self.places.known(args[0]):
                held = self._rows_of(args[1]) if len(args) > 1 else LEN
                return Size(call("min", held, args[0]), True)
            case "every" if self.places.known(args[0]):
                return Size(t.Binary("//", t.Binary("-", plus(LEN, args[0]), number(1)), args[0]), True)
            case "itself":
                return Size(number(1), True)
        per_head = any("h" in self.program.free(arg, self.scope) for arg in args)
        return Size(LEN, False, varies="head" if per_head else "layer")

    def _rows_of(self, zone: t.Expr) -> t.Expr:
        """Rows of a zone: in `move V of ...` those whose V lies there, else those whose K does."""
        stmt = self.effect.stmt
        part = stmt.component.text if isinstance(stmt, t.Move) and stmt.component is not None else "K"
        return call("rows", zone, name(part))

    def _named(self, expr: t.Ref) -> Size:
        word = expr.name.text
        if word in {zone.name.text for zone in self.program.zones}:
            return Size(self._rows_of(expr), True)
        let = self.program.let(self.scope, word)
        if let is not None:
            return self.size(let.value)
        if word in self.program.states:
            return self._state(word)
        if word == "open_page":
            return Size(call("min", LEN, name("page_size")), False)
        return {"all": Size(LEN, True), "none": Size(number(0), True)}.get(word, Size(LEN, False, varies="head"))

    def _state(self, word: str) -> Size:
        """A state that holds a set is as large as the largest set that some rule assigns to it."""
        sizes = []
        for rule, effect in self.program.effects(t.Assign):
            if effect.stmt.target.name.text == word:
                sizes.append(Sizes(self.program, rule, effect).size(effect.stmt.value))
        rows = [size.rows for size in sizes] or [LEN]
        per_head = any(isinstance(index, t.Ref) and index.name.text == "h" for index in self.program.states[word].target.indices)
        return Size(call("max", *rows) if len(rows) > 1 else rows[0], False, varies="head" if per_head else "layer")

    def _selection(self, expr: t.Reduce) -> Size:
        bases = [binder.letter.text for binder in expr.binders]
        within = expr.binders[0].within
        candidates = self.size(within) if within is not None and len(bases) == 1 else Size(LEN, True)
        if expr.op.text not in ("top", "bottom"):
            return Size(candidates.rows, False, varies=self._letter(expr))
        if len(expr.args) < 2:
            return candidates
        size = self._bounded(expr.args[1], bases, candidates)
        varies = self._letter(expr) if "p" in bases else _coarsest(size.varies, candidates.varies)
        return replace(size, exact=size.exact and candidates.exact, varies=varies)

    def _bounded(self, count: t.Expr, bases: list[str], candidates: Size = Size(LEN, True)) -> Size:
        """min(count, candidates), in rows, per head or over more; an upper bound where the host cannot know the count."""
        if "p" in bases:
            whole = call("tokens", count)
            return Size(call("min", candidates.rows, whole), False) if self.places.known(count) else Size(candidates.rows, False)
        per = "model" if "l" in bases else "layer" if "h" in bases else "head"
        if self.places.known(count) and not self.program.free(count, self.scope) & {"h"}:
            held = candidates.rows if per == "head" else t.Binary("*", candidates.rows, KV_HEADS)
            held = t.Binary("*", held, name("n_layers")) if per == "model" else held
            return Size(call("min", held, count), True, per)
        total = self.total(count)
        if total is None:
            return Size(candidates.rows, False, per, "head" if "h" in self.program.free(count, self.scope) else "layer")
        return Size(call("min", t.Binary("*", candidates.rows, KV_HEADS), total), False, "layer")

    def _union(self, expr: t.Binary) -> Size:
        """What positions decide is counted as one set; with rankings the sum is exact where they leave out all other parts."""
        parts = list(self._parts(expr))
        placed = [part for part in parts if self.places.spans(part) is not None]
        spans = tuple(span for part in placed for span in self.places.spans(part))
        rows = positional.size(spans)
        ranked = [part for part in parts if part not in placed] if rows is not None else parts
        sizes = ([Size(rows, True)] if rows is not None and placed else []) + [self.size(part) for part in ranked]
        size = sizes[0]
        for other in sizes[1:]:
            size = self._sum(size, other)
        placed = placed if rows is not None else []
        pairs = ((one, other) for index, one in enumerate(parts) for other in parts[:index])
        apart = all(self._apart(one, other) for one, other in pairs if not {one, other} <= {*placed})
        return size if apart else replace(size, exact=False, varies=_coarsest(size.varies, self._letter(*ranked)))

    def _parts(self, expr: t.Expr) -> Iterator[t.Expr]:
        expr = self._resolved(expr)
        if isinstance(expr, t.Binary) and expr.op == "|":
            yield from self._parts(expr.left)
            yield from self._parts(expr.right)
        else:
            yield expr

    def _resolved(self, expr: t.Expr) -> t.Expr:
        """What a name of a let stands for."""
        let = self.program.let(self.scope, expr.name.text) if isinstance(expr, t.Ref) else None
        return expr if let is None else self._resolved(let.value)

    def _apart(self, one: t.Expr, other: t.Expr) -> bool:
        """Whether two sets surely have no row in common: one ranks candidates that leave the other out."""
        for ranking, rows in ((one, other), (other, one)):
            within = ranking.binders[0].within if isinstance(ranking, t.Reduce) and len(ranking.binders) == 1 else None
            if within is not None and self._leaves_out(within, rows):
                return True
        return False

    def _leaves_out(self, candidates: t.Expr, rows: t.Expr) -> bool:
        """`all - sink(4) - recent(8)` leaves out `sink(4)`, and `recent(8) | sink(4)`."""
        removed: list[t.Expr] = []
        candidates = self._resolved(candidates)
        while isinstance(candidates, t.Binary) and candidates.op == "-":
            removed += self._parts(candidates.right)
            candidates = self._resolved(candidates.left)
        return all(part in removed for part in self._parts(rows))

    def _sum(self, left: Size, right: Size) -> Size:
        """Of sets without a common row."""
        varies = _coarsest(left.varies, right.varies)
        if left.per != right.per:
            left, right = self._over_heads(left), self._over_heads(right)
        whole = LEN if left.per == "head" else t.Binary("*", LEN, KV_HEADS)
        (first, first_exact), (second, second_exact) = _uncapped(left), _uncapped(right)
        return Size(call("min", whole, plus(first, second)), first_exact and second_exact, left.per, varies)

    def _over_heads(self, size: Size) -> Size:
        if size.per == "layer":
            return size
        rows, exact = _uncapped(size)
        return Size(t.Binary("*", rows, KV_HEADS), exact, "layer", size.varies)

    def _difference(self, expr: t.Binary) -> Size:
        """`A - recent(n)` and `A - sink(n)`: what positions alone decide is exact, other differences are bounded by A."""
        left = self.size(expr.left)
        cut = expr.right
        positional = isinstance(cut, t.Call) and cut.name.text in ("recent", "sink") and len(cut.args) == 1
        if positional and self.places.known(cut.args[0]) and (cut.name.text == "recent" or self._holds_sinks(expr.left)):
            return Size(call("max", number(0), t.Binary("-", left.rows, cut.args[0])), left.exact, varies=left.varies)
        return Size(left.rows, False, varies=_coarsest(left.varies, self._letter(expr)))

    def _holds_sinks(self, rows: t.Expr) -> bool:
        """Whether the first rows of the sequence are surely among these: all rows, or a zone that only this move leaves."""
        while isinstance(rows, t.Binary) and rows.op == "-":
            rows = rows.left
        if not isinstance(rows, t.Ref) or rows.name.text == "all":
            return isinstance(rows, t.Ref)
        first = rows.name.text == self.program.zones[0].name.text
        leaving = [effect for _, effect in self.program.effects(t.Move) if effect.stmt.zone.text != rows.name.text]
        return first and leaving == [self.effect]

    # ---- counts per head, summed ------------------------------------------------------------

    def total(self, expr: t.Expr) -> t.Expr | None:
        """An upper bound of the sum over the KV heads of a count that differs per head, or None."""
        if self.places.known(expr) and "h" not in self.program.free(expr, self.scope):
            return t.Binary("*", expr, KV_HEADS)
        match expr:
            case t.Ref() if (let := self.program.let(self.scope, expr.name.text)) is not None:
                return self.total(let.value)
            case t.Reduce() if expr.op.text == "apportion" and self.places.known(expr.args[1]):
                return expr.args[1]
            case t.Reduce() if expr.op.text == "count":
                return self._members(expr)
            case t.Binary(op="+"):
                left, right = self.total(expr.left), self.total(expr.right)
                return plus(left, right) if left is not None and right is not None else None
            case t.Binary(op="-") if self.places.known(expr.right) and not self.program.free(expr.right, self.scope):
                left = self.total(expr.left)
                return t.Binary("-", left, t.Binary("*", expr.right, KV_HEADS)) if left is not None else None
            case t.Binary(op="*") if self.places.known(expr.left) and not self.program.free(expr.left, self.scope):
                inner = self.total(expr.right)
                return t.Binary("*", expr.left, inner) if inner is not None else None
            case t.Call() if expr.name.text in ("round", "floor", "ceil"):
                inner = self.total(expr.args[0])
                slack = {"floor": number(0), "round": t.Binary("/", KV_HEADS, number(2)), "ceil": KV_HEADS}
                return call("floor", plus(inner, slack[expr.name.text])) if inner is not None else None
            case t.Call() if expr.name.text == "where":
                arms = [self.total(arm) for arm in expr.args[1:]]
                return call("max", *arms) if None not in arms else None
        return None

    def _members(self, expr: t.Reduce) -> t.Expr | None:
        """`count[t in S[h]](1)` over all heads is the size of S over all heads."""
        within = expr.binders[0].within
        if within is None or len(expr.binders) != 1:
            return None
        size = self.size(within)
        return size.rows if size.per == "layer" else t.Binary("*", size.rows, KV_HEADS) if size.per == "head" else None


def _uncapped(size: Size) -> tuple[t.Expr, bool]:
    """`n` of `min(len, n)`, since a union is capped as a whole; of what is a bound anyway another cap is dropped too."""
    rows = size.rows
    if isinstance(rows, t.Call) and rows.name.text == "min" and len(rows.args) == 2:
        if rows.args[0] in (LEN, t.Binary("*", LEN, KV_HEADS)) or not size.exact:
            return rows.args[1], size.exact
    return rows, size.exact
