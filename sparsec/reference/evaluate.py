"""Expressions to values. One dispatch; names here, operators and scalar functions in `functions`, sets and reductions in their modules."""

from __future__ import annotations

import math

import torch

from sparsec.dsl import names
from sparsec.dsl import tree as t
from sparsec.reference import functions, reductions, sets, tensors
from sparsec.reference.moment import Moment
from sparsec.reference.program import Unsupported
from sparsec.reference.values import Term, Value, elementwise, is_set


def evaluate(expr: t.Expr, at: Moment) -> Term:
    """The value of an expression at a moment."""
    match expr:
        case t.Int() | t.Float():
            return expr.value
        case t.Ref():
            return reference(expr, at)
        case t.SetLiteral():
            return frozenset(evaluate(item, at) for item in expr.items)
        case t.Unary(op="-"):
            return elementwise(torch.neg, _number(evaluate(expr.operand, at)))
        case t.Unary(op="not"):
            operand = evaluate(expr.operand, at)
            return not operand if isinstance(operand, bool) else elementwise(torch.logical_not, operand)
        case t.Binary(op="and" | "or" | "implies"):
            return _connective(expr, at)
        case t.Binary(op="==" | "!="):
            return _equality(expr, at)
        case t.Binary(op="in" | "not in"):
            inside = _membership(expr, at)
            return inside if expr.op == "in" else elementwise(torch.logical_not, inside)
        case t.Binary():
            return _arithmetic(expr, at)
        case t.Call():
            return call(expr, at)
        case t.Reduce():
            return reductions.reduce(expr, at, evaluate)
    raise Unsupported(f"the expression {type(expr).__name__}", expr)


def truth(expr: t.Expr, at: Moment) -> bool | Value:
    """A guard: a bool, or a bool per KV head where heads differ."""
    value = evaluate(expr, at)
    if isinstance(value, bool):
        return value
    assert isinstance(value, Value) and value.letters == ("h",), f"a guard depends on more than h: {value}"
    data = value.data.bool()
    return bool(data[0]) if bool((data == data[0]).all()) else Value(data, ("h",))


# ---- operators -------------------------------------------------------------------------------


def _number(term: Term) -> Term:
    return int(term) if isinstance(term, bool) else term


def _connective(expr: t.Binary, at: Moment) -> Term:
    """and, or, implies; the right side is not looked at where the left side decides."""
    left = evaluate(expr.left, at)
    if expr.op == "implies":
        left = not left if isinstance(left, bool) else elementwise(torch.logical_not, left)
    decisive = expr.op != "and"
    if isinstance(left, bool):
        return left if left == decisive else evaluate(expr.right, at)
    return elementwise(torch.logical_or if decisive else torch.logical_and, left, evaluate(expr.right, at))


def _equality(expr: t.Binary, at: Moment) -> Term:
    """Words are compared by name: `heads == each`."""
    for choice, word in ((expr.left, expr.right), (expr.right, expr.left)):
        if isinstance(choice, t.Ref) and choice.name.text in at.program.words and isinstance(word, t.Ref):
            return (at.program.params[choice.name.text] == word.name.text) == (expr.op == "==")
    left, right = evaluate(expr.left, at), evaluate(expr.right, at)
    if not isinstance(left, Value) and not isinstance(right, Value):
        return (left == right) == (expr.op == "==")
    return elementwise(torch.eq if expr.op == "==" else torch.ne, left, right)


def _membership(expr: t.Binary, at: Moment) -> Term:
    left, right = evaluate(expr.left, at), evaluate(expr.right, at)
    if isinstance(right, frozenset):
        if isinstance(left, frozenset):
            return left <= right
        return elementwise(lambda x: torch.isin(x, torch.tensor(sorted(right))), left)
    if is_set(left) and is_set(right):
        return sets.subset(left, right, at)
    if isinstance(expr.left, t.Ref) and is_set(right) and right.base == (expr.left.name.text,):
        return Value(right.data, right.letters)
    raise Unsupported("`in` between these values", expr)


def _arithmetic(expr: t.Binary, at: Moment) -> Term:
    left, right = evaluate(expr.left, at), evaluate(expr.right, at)
    if is_set(left) or is_set(right) or expr.op in ("|", "&"):
        if isinstance(left, frozenset) and isinstance(right, frozenset):
            return {"|": left | right, "&": left & right, "-": left - right}[expr.op]
        return sets.combine(expr, left, right, at)
    if isinstance(left, frozenset) and isinstance(right, frozenset):
        return left - right
    if at.slack and expr.op in functions.COMPARISONS:
        return elementwise(functions.lenient(expr.op, at.slack), _number(left), _number(right))
    return elementwise(functions.OPERATORS[expr.op], _number(left), _number(right))


# ---- names -----------------------------------------------------------------------------------


def reference(ref: t.Ref, at: Moment) -> Term:
    """A name with its indices."""
    letters, value = _named(ref, at)
    return _indexed(ref, letters, value, at)


def _named(ref: t.Ref, at: Moment) -> tuple[tuple[str, ...], Term]:
    """The value of a bare name and the letters that its indices stand for."""
    name, program = ref.name.text, at.program
    if name in at.lets:
        return at.lets[name]
    if name in program.params:
        return (), program.params[name]
    if name in program.states:
        return _letters(program.states[name].target), at.storage.state(name, at)
    if name in program.summaries:
        return _letters(program.summaries[name].target), tensors.summary(name, at, evaluate)
    if name in program.stores:
        return _letters(program.stores[name].target), at.storage.stored(name, at.layer)
    if name in program.weights:
        return tuple(letter.text for letter in program.weights[name].letters), tensors.weight(name, at, evaluate)
    if name in program.layers:
        return (), evaluate(program.layers[name].value, at)
    if name in names.TENSORS:
        return _tensor(ref, at)
    return (), _plain(ref, at)


def _plain(ref: t.Ref, at: Moment) -> Term:
    """Facts, constants, sets, zones, and letters as values."""
    name = ref.name.text
    if name == "len":
        return tensors.per_head(at.rows.resident.sum(1))
    if name in at.facts:
        return at.facts[name]
    if name in names.CONSTANTS:
        return names.CONSTANTS[name]
    if name in at.sets:
        return at.sets[name]
    if name in names.SETS:
        return sets.named(ref, at)
    if at.program.zone_index(name) is not None:
        return sets.zone(name, at)
    if name in at.letter_names():
        return Value(torch.arange(tensors.size(name, at, evaluate)), (name,))
    raise Unsupported(f"the name `{name}` here", ref)


def _tensor(ref: t.Ref, at: Moment) -> tuple[tuple[str, ...], Term]:
    name = ref.name.text
    if name == "pos" and ref.indices == (t.Ref(t.Ident("i")),):
        return ("i",), Value(tensors.block(at, ref).positions, ("i",))
    if name in ("hidden", "KV_raw"):
        raise Unsupported(f"`{name}`", ref)
    return names.TENSORS[name].letters, tensors.read(name, at, ref)


def _letters(target: t.Ref) -> tuple[str, ...]:
    return tuple(index.name.text for index in target.indices)


def _indexed(ref: t.Ref, letters: tuple[str, ...], value: Term, at: Moment) -> Term:
    """Letters rename axes, numbers pick from them. An indexed letter of a set's base becomes its granularity."""
    if not isinstance(value, Value) or not ref.indices:
        return value
    renames, picks = {}, {}
    for letter, index in zip(letters, ref.indices, strict=True):
        if isinstance(index, t.Ref) and not index.indices and index.name.text in at.letter_names():
            renames[letter] = index.name.text
        else:
            picks[letter] = evaluate(index, at)
    for letter, index in picks.items():
        if not isinstance(index, int):
            raise Unsupported("an index that is neither a letter nor a number", ref)
        if isinstance(value, Value) and letter in value.letters:
            value = value.picked(letter, index)
    if not isinstance(value, Value):
        return value
    renamed = value.renamed(renames)
    if not value.base:
        return renamed
    left = tuple(letter for letter in renamed.base if letter not in renames.values())
    return Value(renamed.data, renamed.letters, base=left)


# ---- calls -----------------------------------------------------------------------------------


def call(expr: t.Call, at: Moment) -> Term:
    """Set builders, functions of rows and pages, and elementwise functions."""
    name = expr.name.text
    if name in sets.BUILDERS:
        return sets.build(expr, at, evaluate)
    if name == "where":
        return _where(expr, at)
    if name == "rows":
        part = expr.args[1].name.text if len(expr.args) > 1 else "K"
        return tensors.per_head(at.rows.in_zone(sets.zone_of(expr.args[0], at), part).sum(1))
    if name == "order":
        return tensors.order(expr.args[0].name.text, at, expr)
    if name == "rope":
        return tensors.rope(expr, at, evaluate)
    if name in ("pages", "pages_for", "tokens"):
        return _in_pages(name, evaluate(expr.args[0], at), at, expr)
    args = [evaluate(arg, at) for arg in expr.args]
    if name in ("min", "max") and len(args) == 1 and isinstance(args[0], frozenset):
        return (min if name == "min" else max)(args[0])
    if name in functions.FUNCTIONS:
        return elementwise(functions.FUNCTIONS[name], *(_number(arg) for arg in args))
    raise Unsupported(f"the function `{name}`", expr)


def _where(expr: t.Call, at: Moment) -> Term:
    """Only the chosen branch is evaluated where the condition is one bool."""
    condition = evaluate(expr.args[0], at)
    if isinstance(condition, bool):
        return evaluate(expr.args[1 if condition else 2], at)
    yes, no = evaluate(expr.args[1], at), evaluate(expr.args[2], at)
    if is_set(yes) or is_set(no):
        return sets.choose(condition, yes, no)
    return elementwise(torch.where, condition, yes, no)


def _in_pages(name: str, count: Term, at: Moment, node: t.Node) -> Term:
    size = tensors.page_size(at, node)
    if isinstance(count, (int, float)):
        return {"pages": lambda: math.floor(count / size), "pages_for": lambda: math.ceil(count / size),
                "tokens": lambda: count * size}[name]()  # fmt: skip
    return elementwise(
        {"pages": lambda n: n // size, "pages_for": lambda n: (n + size - 1) // size, "tokens": lambda n: n * size}[name], count
    )
