"""Expressions as text: parentheses by precedence, and line breaks where a line would be too wide.

Parentheses that the grammar does not need are dropped, but for two that people need: around `and` inside `or`, and
around `and` or `or` beside `implies`.
"""

from __future__ import annotations

from sparsec.dsl import tree as t

WIDTH = 120

_IMPLIES, _OR, _AND, _NOT, _COMPARE, _UNION, _INTERSECTION, _SUM, _PRODUCT, _SIGN, _ATOM = range(11)
_LEVEL = {
    "implies": _IMPLIES, "or": _OR, "and": _AND, "in": _COMPARE, "not in": _COMPARE, "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE,
    ">=": _COMPARE, "==": _COMPARE, "!=": _COMPARE, "|": _UNION, "&": _INTERSECTION, "+": _SUM, "-": _SUM, "*": _PRODUCT,
    "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT,
}  # fmt: skip
_CHAINS = (_OR, _AND, _UNION, _INTERSECTION, _SUM, _PRODUCT)  # left-associative


def flat(expr: t.Expr, least: int = _IMPLIES) -> str:
    """The expression on one line; in parentheses where it binds looser than `least`."""
    text = _flat(expr)
    return f"({text})" if _level(expr) < least else text


def binder(node: t.Binder) -> str:
    return str(node.letter) if node.within is None else f"{node.letter} in {flat(node.within, _UNION)}"


def arguments(args: tuple[t.Expr, ...], keywords: tuple[t.Keyword, ...]) -> list[str]:
    return [flat(arg) for arg in args] + [f"{one.name} = {flat(one.value)}" for one in keywords]


def lines(expr: t.Expr, column: int, tail: int = 0, least: int = _IMPLIES) -> list[str]:
    """The expression from a column on, the first line without indent; `tail` characters follow on the last line."""
    text = flat(expr, least)
    if column + len(text) + tail <= WIDTH:
        return [text]
    if _level(expr) < least:
        inner = lines(expr, column + 1, tail + 1)
        return ["(" + inner[0], *inner[1:-1], inner[-1] + ")"] if len(inner) > 1 else [f"({inner[0]})"]
    if isinstance(expr, t.Binary):
        return _binary(expr, column, tail)
    if isinstance(expr, t.Unary):
        prefix = _prefix(expr)
        return _after(prefix, lines(expr.operand, column + len(prefix), tail, _operand_level(expr)))
    if isinstance(expr, t.Call) and expr.name.text == "where" and len(expr.args) == 3 and not expr.keywords:
        return _where(expr, column, tail)
    if isinstance(expr, t.Call | t.Reduce):
        return _arguments(_head(expr), expr.args, expr.keywords, column, tail)
    if isinstance(expr, t.SetLiteral):
        return _filled("{", [flat(item) for item in expr.items], "}", column, tail)
    return [text]


# ---- one line ------------------------------------------------------------------------------


def _level(expr: t.Expr) -> int:
    if isinstance(expr, t.Binary):
        return _LEVEL[expr.op]
    if isinstance(expr, t.Unary):
        return _NOT if expr.op == "not" else _SIGN
    return _ATOM


def _flat(expr: t.Expr) -> str:
    match expr:
        case t.Int():
            return str(expr.value)
        case t.Float():
            return expr.text
        case t.Ref():
            return str(expr.name) + (f"[{', '.join(map(flat, expr.indices))}]" if expr.indices else "")
        case t.Call() | t.Reduce():
            return _head(expr) + ", ".join(arguments(expr.args, expr.keywords)) + ")"
        case t.SetLiteral():
            return "{" + ", ".join(map(flat, expr.items)) + "}"
        case t.Unary():
            return _prefix(expr) + flat(expr.operand, _operand_level(expr))
        case t.Binary():
            left, right = _sides(expr)
            return f"{flat(expr.left, left)} {expr.op} {flat(expr.right, right)}"
    raise AssertionError(f"no text for {type(expr).__name__}")


def _prefix(expr: t.Unary) -> str:
    return "not " if expr.op == "not" else "-"


def _operand_level(expr: t.Unary) -> int:
    return _NOT if expr.op == "not" else _SIGN


def _sides(expr: t.Binary) -> tuple[int, int]:
    """The least level that stands without parentheses on the left and on the right."""
    level = _LEVEL[expr.op]
    if level == _IMPLIES:
        return _NOT, _NOT
    if level == _OR:
        return (_OR if _is(expr.left, _OR) else _NOT), _NOT
    if level == _COMPARE:
        return _UNION, _UNION
    return level, level + 1


def _is(expr: t.Expr, level: int) -> bool:
    return isinstance(expr, t.Binary) and _LEVEL[expr.op] == level


def _head(expr: t.Call | t.Reduce) -> str:
    if isinstance(expr, t.Call):
        return f"{expr.name}("
    return f"{expr.op}[{', '.join(map(binder, expr.binders))}]("


# ---- several lines ---------------------------------------------------------------------------


def _after(prefix: str, block: list[str]) -> list[str]:
    return [prefix + block[0], *block[1:]]


def _end(block: list[str], first_column: int) -> int:
    """The column behind the last line of a block whose first line starts at `first_column`."""
    return len(block[-1]) if len(block) > 1 else first_column + len(block[0])


def _binary(expr: t.Binary, column: int, tail: int) -> list[str]:
    """Operands one behind the other as long as they fit, then a new line that starts with the operator."""
    operands = _chain(expr)
    out = lines(operands[0][1], column, 0, operands[0][2])
    for index, (op, operand, least) in enumerate(operands[1:], start=2):
        rest = tail if index == len(operands) else 0
        text = f" {op} {flat(operand, least)}"
        if _end(out, column) + len(text) + rest <= WIDTH:
            out[-1] += text
        else:
            out += _after(" " * column + op + " ", lines(operand, column + len(op) + 1, rest, least))
    return out


def _chain(expr: t.Binary) -> list[tuple[str, t.Expr, int]]:
    """(operator before it, operand, least level) of a run of operators of one level, from the left."""
    level, found = _LEVEL[expr.op], []
    node: t.Expr = expr
    while isinstance(node, t.Binary) and _LEVEL[node.op] == level and (node is expr or level in _CHAINS):
        left, right = _sides(node)
        found.append((node.op, node.right, right))
        node = node.left
    return [("", node, left), *reversed(found)]


def _where(expr: t.Call, column: int, tail: int) -> list[str]:
    """`where(c, a,` and then b: a further `where` under the first, anything else under a."""
    condition, then, otherwise = expr.args
    head = f"where({flat(condition)}, "
    chained = isinstance(otherwise, t.Call) and otherwise.name.text == "where"
    first = _after(head, lines(then, column + len(head), 1))
    under = column if chained else column + len(head)
    last = _after(" " * under, lines(otherwise, under, tail + 1))
    broken = [*first[:-1], first[-1] + ",", *last[:-1], last[-1] + ")"]
    return broken if _fits(broken, column) else _arguments("where(", expr.args, (), column, tail)


def _arguments(head: str, args: tuple[t.Expr, ...], keywords: tuple[t.Keyword, ...], column: int, tail: int) -> list[str]:
    """One argument behind the other as long as they fit; the next lines start under the first."""
    inner = column + len(head)
    parts = [("", arg) for arg in args] + [(f"{one.name} = ", one.value) for one in keywords]
    out: list[str] = []
    for index, (prefix, value) in enumerate(parts):
        last = index == len(parts) - 1
        text = " " + prefix + flat(value) + (")" if last else ",")
        if out and _end(out, column) + len(text) + (tail if last else 0) <= WIDTH:
            out[-1] += text
            continue
        block = _after(prefix, lines(value, inner + len(prefix), tail + 1 if last else 1))
        block[-1] += ")" if last else ","
        out += _after(" " * inner, block) if out else _after(head, block)
    return out


def _filled(opening: str, items: list[str], closing: str, column: int, tail: int) -> list[str]:
    """Short items one behind the other, in as many lines as they need."""
    out = [opening + items[0]]
    for index, item in enumerate(items[1:], start=2):
        rest = tail + len(closing) if index == len(items) else 1
        if _end(out, column) + 2 + len(item) + rest <= WIDTH:
            out[-1] += f", {item}"
        else:
            out[-1] += ","
            out.append(" " * (column + len(opening)) + item)
    out[-1] += closing
    return out


def _fits(block: list[str], column: int) -> bool:
    return column + len(block[0]) <= WIDTH and all(len(line) <= WIDTH for line in block[1:])


def overflow(block: list[str], column: int) -> int:
    """By how many characters the widest line is too wide, 0 where all fit."""
    widest = max([column + len(block[0]), *map(len, block[1:])])
    return max(0, widest - WIDTH)
