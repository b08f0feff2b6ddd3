"""Conditions under phase flags: what is left of a guard in a prompt chunk, in the last chunk, in a decode step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsec.dsl import tree as t

TRUE, FALSE = t.Ref(t.Ident("true")), t.Ref(t.Ident("false"))


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of engine step: which hooks can fire in it and what its flags are."""

    name: str
    hooks: frozenset[str]
    flags: tuple[tuple[str, bool], ...]


_PREFILL = {"kv_write", "build_prefill_selection", "before_prefill_attention", "after_prefill_attention", "layer_end"}
_DECODE = {"kv_write", "build_decode_selection", "before_decode_attention", "after_decode_attention", "layer_end"}


def _flags(prefilling: bool, prompt_done: bool) -> tuple[tuple[str, bool], ...]:
    return (("prefilling", prefilling), ("decoding", not prefilling), ("prompt_done", prompt_done))


CHUNK = Phase("chunk", frozenset(_PREFILL | {"finish_step"}), _flags(True, False))
PROMPT_END = Phase("prompt_end", frozenset(_PREFILL | {"end_of_prompt", "finish_step"}), _flags(True, True))
DECODE = Phase("decode", frozenset(_DECODE | {"finish_step"}), _flags(False, True))


def fold(expr: t.Expr | None, phase: Phase) -> t.Expr:
    """The guard with the phase's flags put in and the connectives simplified; an absent guard is true."""
    if expr is None:
        return TRUE
    match expr:
        case t.Ref():
            return _truth(dict(phase.flags)[expr.name.text]) if expr.name.text in dict(phase.flags) else expr
        case t.Unary(op="not"):
            inner = fold(expr.operand, phase)
            return _truth(inner == FALSE) if inner in (TRUE, FALSE) else t.Unary("not", inner)
        case t.Binary(op="and"):
            return _join(expr, fold(expr.left, phase), fold(expr.right, phase), neutral=TRUE, absorbing=FALSE)
        case t.Binary(op="or"):
            return _join(expr, fold(expr.left, phase), fold(expr.right, phase), neutral=FALSE, absorbing=TRUE)
        case t.Binary(op="implies"):
            return fold(t.Binary("or", t.Unary("not", expr.left), expr.right), phase)
    return expr


def can_fire(names: tuple[str, ...], when: t.Expr | None, phase: Phase) -> bool:
    """Whether a rule bound to these hooks may run in a step of this phase."""
    return bool(set(names) & phase.hooks) and fold(when, phase) != FALSE


def only_at_prompt_end(names: tuple[str, ...], when: t.Expr | None) -> bool:
    """Whether a rule of both hooks that end a step can run in the step that ends the prompt alone: there it runs once, as `end_of_prompt`."""
    both = {"end_of_prompt", "finish_step"} == set(names)
    return both and not can_fire(names, when, CHUNK) and not can_fire(names, when, DECODE)


def conjuncts(expr: t.Expr) -> tuple[t.Expr, ...]:
    if isinstance(expr, t.Binary) and expr.op == "and":
        return conjuncts(expr.left) + conjuncts(expr.right)
    return () if expr == TRUE else (expr,)


def _truth(value: bool) -> t.Ref:
    return TRUE if value else FALSE


def _join(expr: t.Binary, left: t.Expr, right: t.Expr, neutral: t.Expr, absorbing: t.Expr) -> t.Expr:
    if absorbing in (left, right):
        return absorbing
    if left == neutral:
        return right
    return left if right == neutral else replace(expr, left=left, right=right)
