"""Proofs about scalar expressions: bounds, order and divisibility, for all legal values of params and facts.

Atoms of a linear form are replaced by their bounds, one at a time, until a constant is left. A bound may offer
alternatives (`a` or `b` for the lower side of `max(a, b)`), and one alternative may need several cases (both for
`min(a, b)`). The search is cut off after a fixed number of steps: what is not proven is reported as not provable.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.linear import ONE, ZERO, Atom, Forms, Linear

_STEPS = 2000  # of one proof
_LEAST_STEPS = 4  # where the file's effort is spent
_DEPTH = 100
_Cases = tuple[Linear, ...]  # all of them must be considered
_COMPOUND = ("where", "let", "min", "max", "floor", "ceil", "round", "abs", "relu", "mul", "div", "floordiv")


def lower_bound(expr: t.Expr, ctx: Context, given: Sequence[t.Expr] = ()) -> int | float | None:
    """The greatest constant that the expression is proven to reach at least, or None."""
    prover = _Prover(ctx, given)
    return _number(prover.least(prover.forms.of(expr), None))


def upper_bound(expr: t.Expr, ctx: Context, given: Sequence[t.Expr] = ()) -> int | float | None:
    """The least constant that the expression is proven not to exceed, or None."""
    prover = _Prover(ctx, given)
    found = prover.least(prover.forms.of(expr).scaled(Fraction(-1)), None)
    return None if found is None else _number(-found)


def provably_leq(a: t.Expr, b: t.Expr, ctx: Context, given: Sequence[t.Expr] = ()) -> bool:
    """Is a <= b for all legal params, and all sequences in which the conditions `given` hold?

    An operand that could not be typed was reported already; nothing more is demanded of it.
    """
    if ctx.failed(a) or ctx.failed(b):
        return True
    prover = _Prover(ctx, given)
    found = prover.least(prover.forms.of(b) - prover.forms.of(a), Fraction(0))
    return found is not None and found >= 0


def provably_multiple(a: t.Expr, b: t.Expr, ctx: Context) -> bool:
    """Is a whole multiple of b for all legal params? 0 is a multiple of everything."""
    prover = _Prover(ctx)
    return prover.multiple(prover.forms.of(a), prover.forms.of(b), 0)


def _number(value: Fraction | None) -> int | float | None:
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)


class _Prover:
    def __init__(self, ctx: Context, given: Sequence[t.Expr] = ()) -> None:
        self.ctx = ctx
        self.forms = Forms(ctx)
        self.steps = min(_STEPS, max(_LEAST_STEPS, ctx.effort))
        self.depth = 0
        self.given = tuple(form for condition in given for form in self._known(condition))

    def _known(self, condition: t.Expr) -> list[Linear]:
        """Forms that are >= 0 where a condition holds."""
        if not isinstance(condition, t.Binary):
            return []
        if condition.op == "and":
            return [*self._known(condition.left), *self._known(condition.right)]
        if condition.op not in ("<", "<=", ">", ">=", "=="):
            return []
        if any(self.ctx.type_of(side).kind != "number" for side in (condition.left, condition.right)):
            return []  # choices and truth values are compared too, and bound no number
        difference = self.forms.of(condition.right) - self.forms.of(condition.left)
        up, down = difference, difference.scaled(Fraction(-1))
        strict = ONE if self.forms.integral(difference) else ZERO
        return {"<": [up - strict], "<=": [up], ">": [down - strict], ">=": [down], "==": [up, down]}[condition.op]

    # ---- bounds --------------------------------------------------------------------------------

    def least(self, form: Linear, goal: Fraction | None, given: tuple[Linear, ...] | None = None) -> Fraction | None:
        """Greatest constant proven to be <= form; the search ends early once `goal` is reached."""
        if form.constant is not None:
            return form.constant
        self.steps -= 1
        self.ctx.effort -= 1
        if self.steps < 0 or self.depth > _DEPTH:
            return None
        self.depth += 1
        best = self._best(form, goal, self.given if given is None else given)
        self.depth -= 1
        return best

    def _best(self, form: Linear, goal: Fraction | None, given: tuple[Linear, ...]) -> Fraction | None:
        atom, factor = max(form.terms, key=lambda term: self._rank(term[0]))
        rest = form.without(atom)
        best: Fraction | None = None
        options = [(cases, given) for cases in self._options(self.forms.atoms[atom], factor > 0)]
        for cases, known in (*self._from_given(atom, factor > 0, given), *options):
            found = self._worst([rest.plus(case, factor) for case in cases], goal, known)
            if found is not None and (best is None or found > best):
                best = found
                if goal is not None and best >= goal:
                    return best
        return best

    def _worst(self, forms: list[Linear], goal: Fraction | None, given: tuple[Linear, ...]) -> Fraction | None:
        worst: Fraction | None = None
        for form in forms:
            found = self.least(form, goal, given)
            if found is None or goal is not None and found < goal:
                return None
            worst = found if worst is None else min(worst, found)
        return worst

    def _rank(self, number: int) -> tuple[int, int]:
        """What to replace first: operations from the outside in, then the sequence's facts, then params, last ones first."""
        atom = self.forms.atoms[number]
        if atom.op in _COMPOUND:
            return (3, number)
        if atom.op == "param":
            return (1, self.ctx.symbols[atom.key].item.span.start)
        return (0, number) if atom.op == "fact" and atom.key != "len" else (2, number)

    def _from_given(
        self, atom: int, lower: bool, given: tuple[Linear, ...]
    ) -> list[tuple[_Cases, tuple[Linear, ...]]]:
        """Bounds that the known conditions give for an atom; each condition serves once on a path."""
        found = []
        for index, known in enumerate(given):
            factor = dict(known.terms).get(atom)
            if factor is None or (factor > 0) != lower:
                continue
            bound = known.without(atom).scaled(-1 / factor)
            found.append(((bound,), given[:index] + given[index + 1 :]))
        return found

    def _options(self, atom: Atom, lower: bool) -> list[_Cases]:
        """Alternatives for the lower (or upper) bound of an atom."""
        match atom.op:
            case "param":
                return self._param(atom.key, lower)
            case "fact":
                return self._fact(atom.key, lower)
            case "rows":
                return [(ZERO,)] if lower else [(self.forms.atom("fact", key="len"),)]
            case "count":
                return [(ZERO,)] if lower else []
            case "let":
                return [(atom.args[0],)]
            case "where":
                return [atom.args]
            case "max" | "min":
                return [(arg,) for arg in atom.args] if (atom.op == "max") == lower else [atom.args]
            case "floor" | "ceil" | "round":
                return self._rounding(atom, lower)
            case "abs" | "relu":
                return [(ZERO,), (atom.args[0],)] if lower else []
            case "floordiv":
                return self._floor_division(*atom.args, lower)
            case "mul":
                return self._product(*atom.args, lower)
            case "div":
                return self._division(*atom.args, lower)
        return []

    def _param(self, name: str, lower: bool) -> list[_Cases]:
        item = self.ctx.symbols[name].item
        if item.bound is None:
            return []
        if item.bound.is_range:
            end = item.bound.low if lower else item.bound.high
            return [] if end is None else [(self.forms.of(end),)]
        values = item.bound.low.items if isinstance(item.bound.low, t.SetLiteral) else ()
        numbers = [self.forms.of(value).constant for value in values]
        if not numbers or None in numbers:
            return []
        return [(Linear(const=min(numbers) if lower else max(numbers)),)]

    def _fact(self, name: str, lower: bool) -> list[_Cases]:
        if lower:
            return [(ZERO if name in ("layer", "steps", "clusters", "scale") else ONE,)]
        return [(self.forms.atom("fact", key="n_layers") - ONE,)] if name == "layer" else []

    def _rounding(self, atom: Atom, lower: bool) -> list[_Cases]:
        (form,) = atom.args
        slack = {"floor": (1, 0), "ceil": (0, 1), "round": (Fraction(1, 2), Fraction(1, 2))}[atom.op]
        shift = Linear(const=Fraction(-slack[0] if lower else slack[1]))
        options: list[_Cases] = [(form + shift,)]
        if lower and self._at_least(form, 0):
            options.append((ZERO,))
        return options

    def _floor_division(self, a: Linear, b: Linear, lower: bool) -> list[_Cases]:
        divisor = b.constant
        if divisor is not None and divisor > 0:
            whole = divisor.denominator == 1 and self.forms.integral(a)
            slack = ONE.scaled(divisor - 1 if whole else divisor)
            exact = (a - slack if lower else a).scaled(1 / divisor)
            return [(exact,), *([(ZERO,)] if lower and self._at_least(a, 0) else [])]
        if not self._at_least(b, 1) or not self._at_least(a, 0):
            return []
        if not lower:
            return [(a,)]
        return [(ONE,), (ZERO,)] if self._at_least(a - b, 0) else [(ZERO,)]

    def _division(self, a: Linear, b: Linear, lower: bool) -> list[_Cases]:
        if not self._at_least(b, 1) or not self._at_least(a, 0):
            return []
        return [(ZERO,)] if lower else [(a,)]

    def _product(self, a: Linear, b: Linear, lower: bool) -> list[_Cases]:
        options: list[_Cases] = []
        for one, other in ((a, b), (b, a)):
            quotient = self._sole(one, "floordiv")
            if quotient is not None and quotient.args[1] == other and self._at_least(other, 1):
                full = quotient.args[0]  # full // other * other
                options.append((full - other + ONE,) if lower else (full,))
        if not self._at_least(a, 0) or not self._at_least(b, 0):
            return options
        for one, other in ((a, b), (b, a)):
            if lower and self._at_least(other, 1):
                options.append((one,))
            if not lower:
                most = self.least(other.scaled(Fraction(-1)), None, ())
                options.extend([(one.scaled(-most),)] if most is not None else [])
        return [*options, (ZERO,)] if lower else options

    def _sole(self, form: Linear, op: str) -> Atom | None:
        """The atom that a form is, if it is one of this operation."""
        if form.const or len(form.terms) != 1 or form.terms[0][1] != 1:
            return None
        atom = self.forms.atoms[form.terms[0][0]]
        return atom if atom.op == op else None

    def _at_least(self, form: Linear, value: int) -> bool:
        found = self.least(form, Fraction(value))
        return found is not None and found >= value

    # ---- divisibility --------------------------------------------------------------------------

    def multiple(self, a: Linear, b: Linear, depth: int) -> bool:
        """Every term is a multiple of b."""
        if a == b or a == ZERO:
            return True
        if depth > 32:
            return False
        divisor = b.constant
        if divisor is not None and (divisor <= 0 or a.const % divisor) or divisor is None and a.const:
            return False
        return all(self._term_multiple(self.forms.atoms[atom], factor, b, depth) for atom, factor in a.terms)

    def _term_multiple(self, atom: Atom, factor: Fraction, b: Linear, depth: int) -> bool:
        whole = self.forms.atom_integral(atom)
        if whole and b.constant is not None and factor % b.constant == 0:
            return True
        if factor.denominator != 1:
            return False
        form = self.forms.atom(atom.op, atom.args, atom.key)
        if form == b:
            return True
        match atom.op:
            case "mul":
                one, other = atom.args
                return (self.multiple(one, b, depth + 1) and self.forms.integral(other)) or (
                    self.multiple(other, b, depth + 1) and self.forms.integral(one)
                )
            case "min" | "max" | "where" | "let":
                return all(self.multiple(arg, b, depth + 1) for arg in atom.args)
            case "param" if b.constant is not None:
                return self._values_multiple(atom.key, factor, b.constant)
        return False

    def _values_multiple(self, name: str, factor: Fraction, divisor: Fraction) -> bool:
        bound = self.ctx.symbols[name].item.bound
        if bound is None or bound.is_range or not isinstance(bound.low, t.SetLiteral):
            return False
        values = [self.forms.of(value).constant for value in bound.low.items]
        return all(value is not None and value * factor % divisor == 0 for value in values)
