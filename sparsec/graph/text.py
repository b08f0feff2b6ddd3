"""Expressions as the text of the language, for people: facts, formulas and node labels."""

from __future__ import annotations

from sparsec.dsl import tree as t

_LEVEL = {"implies": 1, "or": 2, "and": 3, "in": 5, "not in": 5, "<": 5, "<=": 5, ">": 5, ">=": 5, "==": 5, "!=": 5}
_LEVEL |= {"|": 6, "&": 7, "+": 8, "-": 8, "*": 9, "/": 9, "//": 9, "%": 9}
_ATOM = 11


def text(expr: t.Node) -> str:
    """The expression on one line, with no more parentheses than needed."""
    return _text(expr, 0)


def _text(expr: t.Node, outer: int) -> str:
    body, level = _body(expr)
    return f"({body})" if level < outer else body


def _body(expr: t.Node) -> tuple[str, int]:
    match expr:
        case t.Int():
            return str(expr.value), _ATOM
        case t.Float():
            return expr.text, _ATOM
        case t.Ref():
            return expr.name.text + (f"[{_list(expr.indices)}]" if expr.indices else ""), _ATOM
        case t.Call():
            return f"{expr.name.text}({_list((*expr.args, *expr.keywords))})", _ATOM
        case t.Reduce():
            return f"{expr.op.text}[{_list(expr.binders)}]({_list((*expr.args, *expr.keywords))})", _ATOM
        case t.Keyword():
            return f"{expr.name.text} = {text(expr.value)}", 0
        case t.Binder():
            return expr.letter.text + (f" in {_text(expr.within, 6)}" if expr.within is not None else ""), 0
        case t.SetLiteral():
            return f"{{{_list(expr.items)}}}", _ATOM
        case t.Unary(op="not"):
            return f"not {_text(expr.operand, 4)}", 4
        case t.Unary():
            return f"-{_text(expr.operand, 10)}", 10
        case t.Binary():
            level = _LEVEL[expr.op]
            left = level + 1 if level in (1, 5) else level
            return f"{_text(expr.left, left)} {expr.op} {_text(expr.right, level + 1)}", level
        case t.Ranking():
            steps = " then ".join(text(step) for step in expr.steps)
            return steps + (f" upto {text(expr.upto)}" if expr.upto is not None else ""), 0
    raise AssertionError(f"no text for {type(expr).__name__}")


def _list(nodes: tuple[t.Node, ...]) -> str:
    return ", ".join(text(node) for node in nodes)


def statement(stmt: t.Stmt) -> str:
    """A statement on one line."""
    match stmt:
        case t.Assign():
            return f"{text(stmt.target)} {stmt.op} {text(stmt.value)}"
        case t.Evict():
            return f"evict keep {text(stmt.keep)}"
        case t.Attend():
            return f"attend {'blind ' if stmt.blind else ''}{text(stmt.read)}"
        case t.Move():
            part = f"{stmt.component} of " if stmt.component is not None else ""
            return f"move {part}{text(stmt.rows)} to {stmt.zone}"
        case t.Blend():
            return f"blend {text(stmt.binder)} key {text(stmt.key)} value {text(stmt.value)} times {text(stmt.times)}"
    raise AssertionError(f"{type(stmt).__name__} is no effect")
