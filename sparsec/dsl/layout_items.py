"""Declarations and statements as lines of text, the first one without its indent.

Knows where each construct may break; comments, blank lines and blocks are the printer's (`format.py`).
"""

from __future__ import annotations

from sparsec.dsl import tree as t
from sparsec.dsl.layout import WIDTH, arguments, binder, flat, lines, overflow

HANG = 2  # columns of a continued line


def hook_head(hook: t.Hook, indent: int) -> list[str]:
    """On one line where it fits; else `for` and `when` on lines of their own."""
    names = "on " + ", ".join(map(str, hook.names))
    guards = [(word, guard) for word, guard in (("for ", hook.layers), ("when ", hook.when)) if guard is not None]
    whole = names + "".join(f" {word}{flat(guard)}" for word, guard in guards)
    if indent + len(whole) + 2 <= WIDTH or not guards:
        return [whole]
    out = [names]
    for word, guard in guards:
        block = prefixed(word, guard, indent + HANG, 2)
        out += [" " * (indent + HANG) + block[0], *block[1:]]
    return out


def prefixed(prefix: str, expr: t.Expr, indent: int, tail: int = 0) -> list[str]:
    """`prefix EXPR` from a column on; the expression moves to a line of its own where that saves width."""
    beside = lines(expr, indent + len(prefix), tail)
    if overflow(beside, indent + len(prefix)) == 0:
        return [prefix + beside[0], *beside[1:]]
    below = lines(expr, indent + HANG, tail)
    if overflow(below, indent + HANG) >= overflow(beside, indent + len(prefix)):
        return [prefix + beside[0], *beside[1:]]
    return [prefix.rstrip(), " " * (indent + HANG) + below[0], *below[1:]]


def with_doc(block: list[str], doc: str | None, indent: int, tail: str = "") -> list[str]:
    """A doc text behind its declaration, or below it where the line would be too wide. `tail` is not added."""
    if doc is None:
        return block
    quoted = f'"{doc}"'
    start = indent if len(block) == 1 else 0
    if start + len(block[-1]) + 1 + len(quoted) + len(tail) <= WIDTH:
        return [*block[:-1], f"{block[-1]} {quoted}"]
    return [*block, " " * (indent + HANG) + quoted]


def simple_lines(node: t.Node, indent: int) -> list[str]:
    """A declaration or statement without a block, from a column on, the first line without its indent."""
    match node:
        case t.Cite():
            return [f'cite "{node.text}"']
        case t.Param():
            bound = "" if node.bound is None else f" in {_bound(node.bound)}"
            return with_doc(prefixed(f"param {node.name}: {node.unit}{bound} = ", node.default, indent), node.doc, indent)
        case t.Domain():
            return _words(_domain(node), indent)
        case t.Weight():
            head = f"weight {node.name}[{', '.join(map(str, node.letters))}]: {_dtype(node.dtype)}"
            return [f'{head} from "{node.key}"'] if node.value is None else prefixed(head + " = ", node.value, indent)
        case t.Layers():
            return prefixed(f"layers {node.name} = ", node.value, indent)
        case t.Zone():
            return [f"zone {node.name}" + (f" at {node.tier}" if node.tier else "")]
        case t.Store() | t.Summary():
            word = "store" if isinstance(node, t.Store) else "summary"
            return prefixed(f"{word} {flat(node.target)}: {_dtype(node.dtype)} = ", node.value, indent)
        case t.Decode() | t.Let():
            word = "decode" if isinstance(node, t.Decode) else "let"
            return prefixed(f"{word} {flat(node.target)} = ", node.value, indent)
        case t.State():
            shared = " shared" if node.shared else ""
            block = prefixed(f"state {flat(node.target)}: {_dtype(node.dtype)} = ", node.initial, indent, len(shared))
            return [*block[:-1], block[-1] + shared]
        case t.Ensure():
            return prefixed(f'ensure "{node.text}" ', node.condition, indent)
        case t.Invariant():
            return [f"invariant {node.name}"]
        case t.Entry():
            return prefixed(f"{node.name} = ", node.value, indent)
        case t.Assign():
            return prefixed(f"{flat(node.target)} {node.op} ", node.value, indent)
        case t.Evict():
            return _ranking("evict keep ", node.keep, indent)
        case t.Attend():
            return _ranking("attend blind " if node.blind else "attend ", node.read, indent)
        case t.Move():
            component = f"{node.component} of " if node.component else ""
            tail = f" to {node.zone}"
            block = prefixed(f"move {component}", node.rows, indent, len(tail))
            return [*block[:-1], block[-1] + tail]
        case t.Blend():
            parts = [("key", node.key), ("value", node.value), ("times", node.times)]
            return _words([f"blend {binder(node.binder)}", *(f"{word} {flat(expr)}" for word, expr in parts)], indent)
    raise AssertionError(f"no layout for {type(node).__name__}")


def _bound(bound: t.Bound) -> str:
    if not bound.is_range:
        return flat(bound.low)
    return f"{flat(bound.low)}.." + ("" if bound.high is None else flat(bound.high))


def _dtype(dtype: t.Dtype) -> str:
    if dtype.letter is not None:
        return f"set[{dtype.letter}]"
    parts = arguments(dtype.args, dtype.keywords)
    return f"{dtype.name}({', '.join(parts)})" if parts else str(dtype.name)


def _domain(node: t.Domain) -> list[str]:
    head = f"domain {node.name}[{node.letter}]"
    if node.kind == "fixed":
        return [f"{head} = {flat(node.upto)}"]
    by = [] if node.by is None else [f"by {flat(node.by)}"]
    return [f"{head} {node.kind} {node.base}", *by, f"upto {flat(node.upto)}"]


def _ranking(prefix: str, ranking: t.Ranking, indent: int) -> list[str]:
    """`A then B upto N` on one line, or each step on its own, under the first."""
    words = [("", ranking.steps[0]), *(("then ", step) for step in ranking.steps[1:])]
    words += [("upto ", ranking.upto)] if ranking.upto is not None else []
    whole = prefix + " ".join(word + flat(expr) for word, expr in words)
    if indent + len(whole) <= WIDTH:
        return [whole]
    column = indent + (prefix.index("keep") if "keep" in prefix else HANG)
    out = prefixed(prefix, ranking.steps[0], indent)
    for word, expr in words[1:]:
        block = lines(expr, column + len(word))
        out += [" " * column + word + block[0], *block[1:]]
    return out


def _words(parts: list[str], indent: int) -> list[str]:
    """Parts on one line, or the later ones below the first."""
    whole = " ".join(parts)
    if indent + len(whole) <= WIDTH:
        return [whole]
    return [parts[0], *(" " * (indent + HANG) + part for part in parts[1:])]
