"""Scalar expressions as linear forms: sums of atoms with exact coefficients, with lets looked through.

An atom is what is not linear: a param, a fact, or an operation such as `max(a, b)` or `a // b` over linear forms. Atoms
are numbered, so that equal ones are equal numbers and no comparison walks a tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from sparsec.dsl import names
from sparsec.dsl import tree as t
from sparsec.dsl.checked import Symbol
from sparsec.dsl.context import Context

_NUMERIC = frozenset({*names.COUNT_UNITS, "ratio"})
_MAX_DIGITS = 400  # longer numbers are not reasoned about
_MAX_DEPTH = 150  # of expressions and of the lets that they read


@dataclass(frozen=True, slots=True)
class Linear:
    """const + sum of coefficient * atom."""

    terms: tuple[tuple[int, Fraction], ...] = ()
    const: Fraction = Fraction(0)

    def __add__(self, other: Linear) -> Linear:
        return self.plus(other, Fraction(1))

    def __sub__(self, other: Linear) -> Linear:
        return self.plus(other, Fraction(-1))

    def plus(self, other: Linear, factor: Fraction) -> Linear:
        sums = dict(self.terms)
        for atom, coefficient in other.terms:
            sums[atom] = sums.get(atom, Fraction(0)) + coefficient * factor
        kept = tuple(sorted((atom, value) for atom, value in sums.items() if value))
        return Linear(kept, self.const + other.const * factor)

    def scaled(self, factor: Fraction) -> Linear:
        return Linear().plus(self, factor)

    def without(self, atom: int) -> Linear:
        return Linear(tuple(term for term in self.terms if term[0] != atom), self.const)

    @property
    def constant(self) -> Fraction | None:
        return None if self.terms else self.const


@dataclass(frozen=True, slots=True)
class Atom:
    """op: "param", "fact", "rows", "let", "opaque", or an operation over `args`. key tells leaves apart."""

    op: str
    args: tuple[Linear, ...] = ()
    key: object = None


ONE = Linear(const=Fraction(1))
ZERO = Linear()


class Forms:
    """Turns expressions into linear forms, for one context. Every form and atom is made once."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.atoms: list[Atom] = []
        self._numbers: dict[Atom, int] = {}
        self._depth = 0
        self._done: dict[int, tuple[t.Expr, Linear]] = {}  # holds the expression, so that its id stays taken

    def of(self, expr: t.Expr) -> Linear:
        known = self._done.get(id(expr))
        if known is None:
            known = self._done[id(expr)] = (expr, self._opaque(expr))  # what reads itself is an error, and opaque here
            if self._depth < _MAX_DEPTH:
                self._depth += 1
                known = self._done[id(expr)] = (expr, self._form(expr))
                self._depth -= 1
        return known[1]

    def atom(self, op: str, args: tuple[Linear, ...] = (), key: object = None) -> Linear:
        entry = Atom(op, args, key)
        number = self._numbers.setdefault(entry, len(self.atoms))
        if number == len(self.atoms):
            self.atoms.append(entry)
        return Linear(((number, Fraction(1)),))

    def integral(self, form: Linear) -> bool:
        """Is the form whole for all values of its atoms?"""
        return form.const.denominator == 1 and all(
            value.denominator == 1 and self.atom_integral(self.atoms[atom]) for atom, value in form.terms
        )

    def atom_integral(self, atom: Atom) -> bool:
        match atom.op:
            case "param":
                return self.ctx.symbols[atom.key].item.unit.text in names.COUNT_UNITS
            case "fact":
                return atom.key == "page_size" or names.FACTS[atom.key].unit is not None
            case "rows" | "floordiv" | "floor" | "ceil" | "round" | "count":
                return True
            case "min" | "max" | "mul" | "where":
                return all(self.integral(arg) for arg in atom.args)
        return False

    # ---- expressions ---------------------------------------------------------------------------

    def _form(self, expr: t.Expr) -> Linear:
        match expr:
            case t.Int(value=value):
                return Linear(const=Fraction(value)) if value < 10**_MAX_DIGITS else self._opaque(expr)
            case t.Float(text=text):
                short = len(text) <= _MAX_DIGITS and abs(int(text.lower().partition("e")[2] or 0)) <= _MAX_DIGITS
                return Linear(const=Fraction(text)) if short else self._opaque(expr)
            case t.Ref():
                return self._ref(expr)
            case t.Unary(op="-"):
                return self.of(expr.operand).scaled(Fraction(-1))
            case t.Binary():
                return self._binary(expr)
            case t.Call():
                return self._call(expr)
            case t.Reduce(op=t.Ident(text="count")):
                return self.atom("count", key=id(expr))
            case t.Reduce(op=t.Ident(text="apportion")):
                return self.atom("count", key=id(expr))
        return self._opaque(expr)

    def _opaque(self, expr: t.Expr) -> Linear:
        return self.atom("opaque", key=id(expr))

    def _ref(self, ref: t.Ref) -> Linear:
        symbol = self._symbol(ref)
        name = ref.name.text
        if symbol is None:
            return self._opaque(ref)
        if symbol.kind == "fact":
            known = self.ctx.model.get(name) if self.ctx.model is not None else None
            return self.atom("fact", key=name) if known is None else Linear(const=Fraction(known))
        if symbol.kind == "param" and symbol.item.unit.text in _NUMERIC:
            return self.atom("param", key=name)
        if isinstance(symbol.item, t.Let):
            if not ref.indices:
                return self.of(symbol.item.value)
            return self.atom("let", (self.of(symbol.item.value),), key=(id(symbol.item), ref.indices))
        return self._opaque(ref)

    def _symbol(self, ref: t.Ref) -> Symbol | None:
        """What a reference means; one that a pass made up is looked up by name."""
        name = ref.name.text
        bound = self.ctx.symbol_of(ref)
        if bound is not None:
            return bound
        if name in self.ctx.symbols:
            return self.ctx.symbols[name]
        if name in names.FACTS:
            return Symbol(name, "fact")
        known = self.ctx.lets.get(name, [])
        return known[0] if len(known) == 1 else None

    def _binary(self, expr: t.Binary) -> Linear:
        if expr.op not in ("+", "-", "*", "/", "//", "%"):
            return self._opaque(expr)
        a, b = self.of(expr.left), self.of(expr.right)
        match expr.op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return self.product(a, b)
            case "/":
                return a.scaled(1 / b.constant) if b.constant else self.atom("div", (a, b))
            case "//":
                return self.quotient(a, b)
        return a - self.product(self.quotient(a, b), b)

    def product(self, a: Linear, b: Linear) -> Linear:
        if a.constant is not None or b.constant is not None:
            return b.scaled(a.constant) if a.constant is not None else a.scaled(b.constant)
        return self.atom("mul", tuple(sorted((a, b), key=lambda form: (form.terms, form.const))))

    def quotient(self, a: Linear, b: Linear) -> Linear:
        """a // b; a whole multiple of a constant divides exactly."""
        if b.constant is not None and b.constant > 0:
            exact = a.scaled(1 / b.constant)
            if self.integral(exact):
                return exact
        return self.atom("floordiv", (a, b))

    def _call(self, call: t.Call) -> Linear:
        name = call.name.text
        if name == "rows":
            part = call.args[1].name.text if len(call.args) == 2 and isinstance(call.args[1], t.Ref) else None
            zone = call.args[0].name.text if call.args and isinstance(call.args[0], t.Ref) else None
            return self.atom("rows", key=(zone, part))
        if name in ("min", "max") and len(call.args) >= 2:
            return self.atom(name, tuple(dict.fromkeys(self.of(arg) for arg in call.args)))
        if name == "where" and len(call.args) == 3:
            return self.atom("where", (self.of(call.args[1]), self.of(call.args[2])), key=id(call))
        if name in ("floor", "ceil", "round", "abs", "relu") and len(call.args) == 1:
            form = self.of(call.args[0])
            return form if name in ("floor", "ceil", "round") and self.integral(form) else self.atom(name, (form,))
        if name in ("pages", "pages_for", "tokens") and len(call.args) == 1:
            return self._pages(name, self.of(call.args[0]))
        if name == "levels":
            return self.atom("count", key=id(call))
        return self._opaque(call)

    def _pages(self, name: str, form: Linear) -> Linear:
        size = self._page_size()
        if name == "tokens":
            return self.product(form, size)
        return self.quotient(form if name == "pages" else form + size - ONE, size)

    def _page_size(self) -> Linear:
        if "page_size" in self.ctx.symbols:
            return self.atom("param", key="page_size")
        for item in self.ctx.method.of(t.Schedule):
            for entry in item.entries:
                if entry.name.text == "page_size":
                    return self.of(entry.value)
        return self.atom("fact", key="page_size")
