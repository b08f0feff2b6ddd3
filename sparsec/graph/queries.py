"""Which attention scores a method observes: of which queries, through which reductions, in which hooks.

Attention must return exactly these, and the engine keeps the Q of as many newest queries as `last(n)` asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from sparsec.dsl import tree as t
from sparsec.graph.program import SET_OPS, Program
from sparsec.graph.text import text

SCORES = ("probs", "logits")
OBSERVABLE = (*SCORES, "Q")
STEP = "step"  # the queries of the step


@dataclass(frozen=True, slots=True)
class Observed:
    """One use of a score tensor.

    queries: "step" (every query of the step) or "last(n)"; reduces: innermost first, e.g. ("mean[g]", "sum[i]").
    """

    tensor: str
    queries: str
    reduces: tuple[str, ...]
    hooks: tuple[str, ...]
    rule: int
    line: int


@dataclass(frozen=True, slots=True)
class _Path:
    """A score leaf on its way up to the statement that uses it."""

    tensor: str
    queries: str | None
    reduces: tuple[str, ...]


def observed(program: Program, tensors: tuple[str, ...] = SCORES) -> tuple[Observed, ...]:
    """Every use of these tensors in an effect, in source order."""
    found: dict[Observed, None] = {}
    for rule in program.rules:
        memo: dict[str, frozenset[_Path]] = {}
        for let in rule.lets:  # in source order, so that long chains of lets do not recurse
            memo[let.target.name.text] = memo.get(let.target.name.text, frozenset()) | _paths(let.value, memo)
        for effect in rule.effects:
            nodes = [*_operands(effect.stmt), *([effect.when] if effect.when is not None else [])]
            for path in sorted(frozenset().union(*(_paths(node, memo) for node in nodes)), key=repr):
                if path.tensor in tensors:
                    use = Observed(path.tensor, path.queries or STEP, path.reduces, rule.names, rule.index, effect.line)
                    found.setdefault(use)
    return tuple(found)


def ring(program: Program) -> t.Expr | None:
    """How many newest queries per layer must be kept, as an expression over params; None where none are."""
    counts: dict[str, t.Expr] = {}
    for node in t.walk(program.method):
        if isinstance(node, t.Binder) and node.letter.text == "i" and isinstance(node.within, t.Call):
            if node.within.name.text == "last":
                counts.setdefault(text(node.within.args[0]), node.within.args[0])
    if not counts:
        return None
    return reduce(lambda left, right: t.Call(t.Ident("max"), (left, right)), (counts[key] for key in sorted(counts)))


def _operands(stmt: t.Stmt) -> tuple[t.Node, ...]:
    return tuple(child for child in t.children(stmt) if not isinstance(child, t.Ident))


def _paths(node: t.Node, memo: dict[str, frozenset[_Path]]) -> frozenset[_Path]:
    """Paths of all scores below the node; `memo` holds those of the lets before it."""
    if isinstance(node, t.Ref):
        word = node.name.text
        below = frozenset({_Path(word, None, ())}) if word in OBSERVABLE else memo.get(word, frozenset())
        return below.union(*(_paths(index, memo) for index in node.indices))
    below = frozenset().union(*(_paths(child, memo) for child in t.children(node)))
    if not isinstance(node, t.Reduce) or node.op.text in SET_OPS | {"apportion", "count"}:
        return below
    return frozenset(_reduced(path, node) for path in below)


def _reduced(path: _Path, node: t.Reduce) -> _Path:
    letters = ", ".join(binder.letter.text for binder in node.binders)
    queries = path.queries
    for binder in node.binders:
        if binder.letter.text == "i":
            queries = text(binder.within) if binder.within is not None else STEP
    return _Path(path.tensor, queries, (*path.reduces, f"{node.op.text}[{letters}]"))
