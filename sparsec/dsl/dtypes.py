"""Dtypes: which may stand where, their arguments, and the letters in `along` and `set[.]`."""

from __future__ import annotations

from sparsec.dsl import domains, names, scopes, units
from sparsec.dsl import tree as t
from sparsec.dsl.calls import check_keywords
from sparsec.dsl.checked import Type
from sparsec.dsl.scopes import Scope
from sparsec.dsl.types import Typer

_EQUATION = Scope("equation")


def type_of_dtype(typer: Typer, target: t.Ref, dtype: t.Dtype, free: frozenset[str]) -> Type:
    """Type of a name declared with a dtype that `check_dtype` accepted."""
    if dtype.letter is not None:
        return Type("set", free, (dtype.letter.text,))
    if dtype.name.text == "bool":
        return Type("bool", free)
    return typer.number(target, units.WHOLE if names.DTYPES[dtype.name.text].integral else units.PLAIN, free)


def check_dtype(typer: Typer, dtype: t.Dtype, letters: tuple[str, ...], kind: str) -> bool:
    """May a `kind` (state, summary, store, weight) with these letters have this dtype? Reports what is wrong."""
    ctx, info = typer.ctx, names.DTYPES.get(dtype.name.text)
    fitting = [name for name, known in names.DTYPES.items() if kind in known.uses]
    if info is None:
        help, fixes = scopes.suggestion(ctx, dtype.name, fitting, f"dtypes of a {kind}: {', '.join(fitting)}")
        ctx.report("S105", dtype.name, f"unknown dtype `{dtype.name}`", help, fixes)
        return False
    if kind not in info.uses:
        help = f"dtypes of a {kind}: {', '.join(fitting)}"
        ctx.report("S121", dtype, f"a {kind} cannot have dtype `{info.name}`", help)
        return False
    if dtype.letter is not None:
        return _check_set_letter(typer, dtype, letters)
    good = check_keywords(typer, dtype, info.keywords, (), _EQUATION)
    if len(dtype.args) != len(info.args):
        count = len(info.args)
        help = f"write `{info.name}({', '.join(info.args)})`" if count else f"write `{info.name}`"
        ctx.report("S118", dtype, f"`{info.name}` takes {count or 'no'} argument{'' if count == 1 else 's'}", help)
        return False
    for arg in dtype.args:
        _check_dtype_argument(typer, dtype, arg)
    return _check_along(typer, dtype, letters) and good


def _check_set_letter(typer: Typer, dtype: t.Dtype, letters: tuple[str, ...]) -> bool:
    letter = dtype.letter
    if letter.text not in typer.ctx.letters:
        domains.unknown_letter(typer.ctx, letter)
        return False
    if letter.text in letters:
        message = f"`{letter}` is an index of this state and cannot be what its set ranges over"
        typer.ctx.report("S208", letter, message, "a set for every t of tokens would need two letters, `t` and `s`")
        return False
    return True


def _check_dtype_argument(typer: Typer, dtype: t.Dtype, arg: t.Expr) -> None:
    match dtype.name.text:
        case "int":
            typer.infer_count(arg, _EQUATION, "bits")
        case "pruned":
            typer.infer_bool(arg, _EQUATION)
        case "index":
            zones = tuple(zone.name.text for zone in typer.ctx.method.of(t.Zone))
            if domains.bare(arg) not in zones:
                ident = arg.name if isinstance(arg, t.Ref) else None
                scopes.unknown_zone(typer.ctx, ident, arg, zones)
            typer.ctx.types[id(arg)] = Type("zone", base=("t",))
        case "code":
            _check_grid(typer, arg)


def _check_grid(typer: Typer, arg: t.Expr) -> None:
    """A grid is a weight with one index, of a domain declared for it."""
    symbol = typer.ctx.symbols.get(domains.bare(arg) or "")
    typer.ctx.types[id(arg)] = Type("number", static=True)
    if symbol is None or symbol.kind != "weight":
        known = tuple(item.name.text for item in typer.ctx.method.of(t.Weight))
        help = f"weights: {', '.join(known) or 'none'}"
        typer.ctx.report("S101", arg, "a grid must be a declared weight", help)
        return
    typer.ctx.bindings[id(arg)] = symbol
    known_letters = [letter for letter in symbol.letters if letter in typer.ctx.letters]
    declared = [letter for letter in known_letters if domains.domain_item(typer.ctx, letter)]
    if len(symbol.letters) != 1 or not declared:
        message = f"the grid `{symbol.name}` must have one index, of a domain declared for it"
        typer.ctx.report("S205", arg, message, "e.g. `domain grid[r] = levels(bits)` and `weight lut[r]: ...`")


def _check_along(typer: Typer, dtype: t.Dtype, letters: tuple[str, ...]) -> bool:
    """`along` names the axis whose neighbours share a scale: the token, or the last index."""
    for keyword in dtype.keywords:
        letter = domains.letter_of(typer.ctx, keyword.value)
        if keyword.name.text != "along" or letter is None:
            continue
        legal = [name for name in letters if typer.ctx.letters[name] == "token" or name == letters[-1]]
        if letter not in legal:
            message = f"values cannot be grouped along `{letter}` here"
            help = f"`along` is the token index or the last one: {', '.join(legal)}"
            typer.ctx.report("S213", keyword.value, message, help)
            return False
    return True
