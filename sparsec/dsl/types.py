"""The type of every expression: kind, free letters, base of sets, unit, static. One recursive walk, bottom up.

Recursion is bounded by the parser's nesting limit. What has been reported is UNKNOWN and silences what depends on it.
"""

from __future__ import annotations

from sparsec.dsl import domains, scopes, units
from sparsec.dsl import tree as t
from sparsec.dsl.calls import infer_call
from sparsec.dsl.checked import UNKNOWN, Symbol, Type
from sparsec.dsl.context import Context
from sparsec.dsl.operators import infer_binary, infer_unary
from sparsec.dsl.reductions import infer_reduce
from sparsec.dsl.refs import infer_ref
from sparsec.dsl.scopes import Scope
from sparsec.dsl.units import Unit

SET_KINDS = frozenset({"set", "zone"})


def _way_out(found: Type, wanted: str, name: str) -> str:
    """Help for an expression of the wrong kind."""
    if found.kind == "choice":
        return f"compare it, e.g. `where({name} == value, a, b)`"
    if wanted == "true or false":
        return f"compare it, e.g. `{name} > 0`" if found.kind == "number" else "ask for members, e.g. `t in S`"
    if found.kind == "bool":
        number = wanted == "a number"
        return f"write `where({name}, 1, 0)` for a number" if number else "choose with `where(condition, a, b)`"
    if found.kind in SET_KINDS and wanted == "a number":
        return "count its members with `count[t in SET](1)`, or the rows of a zone with `rows(zone)`"
    if wanted.startswith("a set of layers"):
        return "write layers as `{0, 2}`, or name a param of unit layer_set"
    return "write a set, e.g. `recent(n)`, `all` or a zone" if wanted.startswith("a set") else f"{wanted} is what fits here"


class Typer:
    """Infers types into `ctx.types`; `unit_of` keeps dimension and wholeness, which `Type.unit` folds into one word."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._units: dict[int, Unit] = {}

    # ---- entry points ------------------------------------------------------------------------

    def infer(self, expr: t.Expr, scope: Scope) -> Type:
        """Type of an expression where any kind may stand."""
        found = self._infer(expr, scope)
        self.ctx.types[id(expr)] = found
        return found

    def infer_number(self, expr: t.Expr, scope: Scope) -> Type:
        return self.want(expr, self.infer(expr, scope), "number")

    def infer_bool(self, expr: t.Expr, scope: Scope) -> Type:
        return self.want(expr, self.infer(expr, scope), "bool")

    def infer_set(self, expr: t.Expr, scope: Scope, base: tuple[str, ...] = ()) -> Type:
        """Type of an expression where a set must stand: a page or group letter is then the set of its members."""
        found = self._infer_set(expr, scope)
        self.ctx.types[id(expr)] = found
        if found.kind not in (*SET_KINDS, "layer_set", "unknown"):
            return self.mismatch(expr, found, "a set")
        if base and found.kind == "set" and not found.base:
            self.settle(expr, base)
        return self.ctx.types[id(expr)]

    def infer_count(self, expr: t.Expr, scope: Scope, dim: str = "tokens") -> Type:
        """Type of a whole number of rows, pages or plain things."""
        found = self.infer_number(expr, scope)
        if found.kind != "unknown":
            self.check_count(expr, dim)
        return found

    # ---- results -----------------------------------------------------------------------------

    def number(self, expr: t.Expr, unit: Unit, free: frozenset[str] = frozenset(), static: bool = False) -> Type:
        """A number type, with its unit noted for the expression."""
        self._units[id(expr)] = unit
        return Type("number", free, unit=unit.label, static=static)

    def unit_of(self, expr: t.Expr) -> Unit:
        return self._units.get(id(expr), units.PLAIN)

    def set_unit(self, expr: t.Expr, unit: Unit) -> None:
        self._units[id(expr)] = unit

    # ---- demands -----------------------------------------------------------------------------

    def want(self, expr: t.Expr, found: Type, kind: str) -> Type:
        if found.kind in (kind, "unknown"):
            return found
        return self.mismatch(expr, found, {"number": "a number", "bool": "true or false"}[kind])

    def mismatch(self, expr: t.Expr, found: Type, wanted: str) -> Type:
        """Report S301: an expression of the wrong kind."""
        what = {
            "number": "a number", "bool": "a condition", "set": "a set", "zone": "a zone", "layer_set": "a set of layers",
            "choice": "a choice",
        }[found.kind]  # fmt: skip
        name = domains.bare(expr)
        help = _way_out(found, wanted, name or "x")
        subject = f"`{name}` is {what}" if name else f"this is {what}"
        self.ctx.report("S301", expr, f"{subject}, but {wanted} is needed here", help)
        return UNKNOWN

    def check_count(self, expr: t.Expr, dim: str) -> None:
        unit = self.unit_of(expr)
        if not unit.whole:
            help = "round it: `floor(x)`, `ceil(x)`, `round(x)`, or divide with `//`"
            self.ctx.report("S303", expr, "a count must be a whole number, and this may be a fraction", help)
        elif unit.dim not in (dim, "int"):
            help = {
                ("pages", "tokens"): "convert with `pages(...)` (rounds down) or `pages_for(...)` (up)",
                ("tokens", "pages"): "convert with `tokens(...)`",
            }.get((dim, unit.dim))
            wanted = "a plain count" if dim == "int" else dim
            if dim != "int" or unit.dim in ("bits", "bytes"):
                self.ctx.report("S304", expr, f"{wanted} are counted here, but this is in {unit.dim}", help)

    # ---- dispatch ----------------------------------------------------------------------------

    def _infer(self, expr: t.Expr, scope: Scope) -> Type:
        match expr:
            case t.Int():
                return self.number(expr, units.WHOLE, static=True)
            case t.Float():
                return self.number(expr, units.FRACTION, static=True)
            case t.Ref():
                return infer_ref(self, expr, scope)
            case t.Call():
                return infer_call(self, expr, scope)
            case t.Reduce():
                return infer_reduce(self, expr, scope)
            case t.Unary():
                return infer_unary(self, expr, scope)
            case t.Binary():
                return infer_binary(self, expr, scope)
            case t.SetLiteral():
                return self._literal(expr, scope)
        raise AssertionError(f"no typing rule for {type(expr).__name__}")

    def _literal(self, expr: t.SetLiteral, scope: Scope) -> Type:
        for item in expr.items:
            self.infer_count(item, scope, "int")
        found = [self.ctx.type_of(item) for item in expr.items]
        if any(item.kind == "unknown" for item in found):
            return UNKNOWN
        free = frozenset().union(*(item.free for item in found))
        return Type("layer_set", free, ("l",), static=all(item.static for item in found))

    def _infer_set(self, expr: t.Expr, scope: Scope) -> Type:
        letter = domains.letter_of(self.ctx, expr)
        if letter is not None and letter not in scope.lets:
            return self._members(expr, letter)
        if isinstance(expr, t.Binary) and expr.op in ("|", "&", "-"):
            left, right = self.infer_set(expr.left, scope), self.infer_set(expr.right, scope)
            return self.combine(expr, left, right)
        return self._infer(expr, scope)

    def _members(self, expr: t.Ref, letter: str) -> Type:
        member = domains.member_letter(self.ctx, letter)
        self.ctx.bindings[id(expr)] = Symbol(letter, "letter")
        if member is None and domains.is_group(self.ctx, letter):
            return UNKNOWN  # what it groups is unknown, and reported
        if member is None:
            domain = self.ctx.letters[letter]
            help = "only letters of pages and of `groups` domains are sets of rows"
            self.ctx.report("S212", expr, f"`{letter}` is one {domain}, not a set", help)
            return UNKNOWN
        return Type("set", frozenset({letter}), (member,))

    # ---- sets --------------------------------------------------------------------------------

    def combine(self, expr: t.Binary, left: Type, right: Type) -> Type:
        """Type of `left op right` for two sets; pages among tokens count as their rows."""
        if "unknown" in (left.kind, right.kind):
            return UNKNOWN
        if "layer_set" in (left.kind, right.kind):
            return self._combine_layers(expr, left, right)
        base = self.common_base(left.base, right.base)
        if base is None:
            names_of = [scopes.listed(side.base) for side in (left, right)]
            message = f"a set over {names_of[0]} and one over {names_of[1]} cannot be combined"
            self.ctx.report("S212", expr, message, "both sides of `|`, `&`, `-` must range over the same things")
            return UNKNOWN
        for side, found in ((expr.left, left), (expr.right, right)):
            if base and found.kind == "set" and not found.base:
                self.settle(side, base)
        return Type("set", left.free | right.free, base)

    def _combine_layers(self, expr: t.Binary, left: Type, right: Type) -> Type:
        for side, found in ((expr.left, left), (expr.right, right)):
            if found.kind == "layer_set":
                continue
            if found.base or found.kind == "zone":
                return self.mismatch(side, found, "a set of layers")
            self.settle(side, ("l",))
        return Type("layer_set", left.free | right.free, ("l",), static=True)

    def common_base(self, a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...] | None:
        """Base of a union; None where the two range over different things."""
        if not a or not b:
            return a or b
        kinds = [{domains.base_domain(self.ctx, letter) for letter in base} for base in (a, b)]
        if kinds[0] == kinds[1]:
            return a
        groups = [self.as_tokens(base) for base in (a, b)]
        if groups[0] == groups[1] == "token":  # pages or clusters beside tokens: their rows
            return ("t",)
        wide, narrow = (a, b) if len(a) > len(b) else (b, a)
        narrow_kinds = {domains.base_domain(self.ctx, letter) for letter in narrow}
        wide_kinds = {domains.base_domain(self.ctx, letter) for letter in wide}
        if len(narrow) == 1 and narrow_kinds == {"token"} and "token" in wide_kinds:
            return wide  # recent(n) beside top[t, h]: the same rows in every head
        return None

    def as_tokens(self, base: tuple[str, ...]) -> str | None:
        """"token" where the members of a set are rows, or groups of rows such as pages."""
        if len(base) != 1:
            return None
        if domains.base_domain(self.ctx, base[0]) == "token" or domains.member_letter(self.ctx, base[0]) in ("t", "s"):
            return "token"
        return None

    def settle(self, expr: t.Expr, base: tuple[str, ...]) -> None:
        """Give `all` and `none`, and what is made of them alone, the base that their surroundings ask for."""
        found = self.ctx.type_of(expr)
        if found.kind != "set" or found.base:
            return
        kind = "layer_set" if base == ("l",) else "set"
        self.ctx.types[id(expr)] = Type(kind, found.free, base, static=kind == "layer_set")
        parts = (expr.left, expr.right) if isinstance(expr, t.Binary) else ()
        for part in expr.args[1:] if isinstance(expr, t.Call) else parts:
            self.settle(part, base)
