"""Arithmetic of units: what tokens, pages, bits and ratios give when they are added, multiplied, divided or rounded.

A unit has a dimension and says whether the value is whole. `int` is a plain count and fits every dimension; `ratio` is
a share and may scale a count but not be added to one; None is a tensor's value, which is not a count of anything.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    dim: str | None  # tokens, pages, bytes, bits, int, ratio or None
    whole: bool

    @property
    def label(self) -> str | None:
        """The word that `Type.unit` holds."""
        if self.dim is None or self.whole:
            return self.dim
        return "ratio"


PLAIN = Unit(None, False)
WHOLE = Unit("int", True)
FRACTION = Unit("int", False)
RATIO = Unit("ratio", False)
TOKENS = Unit("tokens", True)
PAGES = Unit("pages", True)


def of_param(unit: str) -> Unit:
    """The unit of a param declared with a numeric unit word."""
    return RATIO if unit == "ratio" else Unit(unit, True)


def compatible(a: Unit, b: Unit) -> bool:
    """May the two be added, compared or be branches of one `where`?"""
    if a.dim is None or b.dim is None or a.dim == b.dim:
        return True
    return "int" in (a.dim, b.dim)


def join(a: Unit, b: Unit) -> Unit:
    """Unit of a sum, a maximum or a choice of two compatible values."""
    if a.dim is None or b.dim is None:
        return PLAIN
    return Unit(b.dim if a.dim == "int" else a.dim, a.whole and b.whole)


def times(a: Unit, b: Unit) -> Unit:
    if a.dim is None or b.dim is None:
        return PLAIN
    whole = a.whole and b.whole
    for neutral in ("int", "ratio"):  # a share of tokens is tokens, a share of a plain count is a plain count
        if a.dim == neutral:
            return Unit(b.dim if b.dim != "ratio" else a.dim, whole)
        if b.dim == neutral:
            return Unit(a.dim, whole)
    for dim in ("bits", "bytes"):
        if dim in (a.dim, b.dim):
            return Unit(dim, whole)
    if {a.dim, b.dim} == {"tokens", "pages"}:  # page_size is in tokens: tokens per page
        return Unit("tokens", whole)
    return PLAIN


def divided(a: Unit, b: Unit) -> Unit:
    """Unit of `a / b`: never whole."""
    if a.dim is None or b.dim is None:
        return PLAIN
    if a.dim == b.dim:
        return FRACTION if a.dim == "int" else RATIO
    if b.dim in ("int", "ratio"):
        return Unit(a.dim, False)
    return FRACTION if {a.dim, b.dim} == {"tokens", "pages"} else PLAIN


def floor_divided(a: Unit, b: Unit) -> Unit:
    """Unit of `a // b`: tokens // tokens is a plain count, which serves as pages where page_size divides."""
    quotient = divided(a, b)
    return Unit("int" if quotient.dim in (None, "ratio") else quotient.dim, True)


def rounded(a: Unit) -> Unit:
    return Unit("int" if a.dim in (None, "ratio") else a.dim, True)
