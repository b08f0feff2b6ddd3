"""Constructors of ops: axes, kinds and supports follow from the arguments here and nowhere else."""

from __future__ import annotations

from sparsec.codegen.plan import Detail, Op, canonical

_RANK = {"bool": 0, "set": 0, "int": 1, "ratio": 2, "model": 3, "real": 4}


def const(value: int | float | bool) -> Op:
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "ratio"
    return Op("const", detail=(value,), kind=kind, host=True)


def value(name: str, *detail: Detail, axes: tuple[str, ...] = (), kind: str = "int", host: bool = False, thin: bool = False) -> Op:
    return Op(name, detail=detail, axes=axes, kind=kind, host=host, thin=thin)


def local(name: str, like: Op, support: Op | None = None) -> Op:
    """A reference to a bound name that has the axes and kind of the value bound."""
    return Op("local", detail=(name,), axes=like.axes, kind=like.kind, host=like.host, thin=like.thin, support=support or like.support)


def both(a: Op | None, b: Op | None) -> Op | None:
    """The entries in both masks; None is everything."""
    if a is None or b is None or a == b:
        return a if b is None else b
    return apply("and", a, b, kind="set")


def joined(*args: Op) -> tuple[tuple[str, ...], bool]:
    """The axes of an elementwise result, and whether its h axis is thin."""
    letters = frozenset[str]().union(*(a.axes for a in args))
    with_heads = [a for a in args if "h" in a.axes]
    return canonical(letters), bool(with_heads) and all(a.thin for a in with_heads)


def apply(fn: str, *args: Op, kind: str) -> Op:
    """An elementwise function."""
    axes, thin = joined(*args)
    support: Op | None = None
    for arg in args:
        support = both(support, arg.support)
    return Op("map", args, (fn,), axes, kind, all(a.host for a in args), thin, support)


def arithmetic(fn: str, *args: Op) -> Op:
    if fn == "mul" and (unit := _without_unit(*args)) is not None:
        return unit
    kind = max((a.kind for a in args), key=_RANK.__getitem__)
    kind = "int" if kind in ("bool", "set") else "real" if kind == "model" else kind
    return apply(fn, *args, kind=kind)


def _without_unit(left: Op, right: Op) -> Op | None:
    """The other factor of a multiplication by one."""
    for one, other in ((left, right), (right, left)):
        if one.name == "const" and one.detail == (1.0,) and other.kind != "model":
            return other
    return None


def logic(fn: str, *args: Op) -> Op:
    return apply(fn, *args, kind="set" if any(a.kind == "set" for a in args) else "bool")


def reduce(fn: str, letters: tuple[str, ...], arg: Op, where: Op | None, kind: str) -> Op:
    """A reduction over `letters`; `where` masks the entries that take part."""
    axes = tuple(a for a in arg.axes if a not in letters)
    gone = {"t", "slot", "p"} & set(letters)
    thin = arg.thin and "h" in axes
    args = (arg,) if where is None else (arg, where)
    return Op("reduce", args, (fn, *letters), axes, kind, False, thin, None if gone else arg.support)


def widen(arg: Op, axes: tuple[str, ...], thin: bool = False) -> Op:
    """The same value with further axes; where the target has no h, a thin one is taken away."""
    if arg.axes == axes or arg.host:
        return arg
    assert set(arg.axes) - set(axes) <= ({"h"} if arg.thin else set()), f"cannot align {arg.axes} with {axes}"
    return Op("widen", (arg,), axes=axes, kind=arg.kind, thin=thin or ("h" in axes and (arg.thin or "h" not in arg.axes)), support=arg.support)
