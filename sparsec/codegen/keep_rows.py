"""Rows that an eviction keeps: whether they are the first, the newest, and of the others those of the largest state or of the newest query's probs."""

from __future__ import annotations

from dataclasses import dataclass

from sparsec.codegen.host_numbers import host_number
from sparsec.codegen.pattern import fill
from sparsec.codegen.plan import Evict, Op, Step

_CARE = (
    "widen(reduce({over}, i, h, g, of_queries(probs, window(const(1)))[i,h,g,t], of_queries(query_valid, window(const(1)))[i])[t])[h,t]"
)


@dataclass(frozen=True, slots=True)
class KeepOf:
    """A Keep of the runtime's DecodePlan, as generated text. asked: over which letters' heads the newest query's probs are reduced, where they rank the rows."""

    state: str | None
    asked: str | None
    first: str  # Python text over params
    newest: str
    line: int

    def __str__(self) -> str:
        state = "None" if self.state is None else f'"{self.state}"'
        asked = "" if self.asked is None else f', asked="{self.asked}"'
        return f"Keep({state}, first=lambda params: {self.first}, newest=lambda params: {self.newest}{asked})"


def keep_rows(effects: list[Step], line: int) -> KeepOf | None:
    """The Keep that one eviction is, if it is one; others run the generated hook."""
    if len(effects) != 1 or not isinstance(effects[0], Evict):
        return None
    kept, state, asked = effects[0].keep, None, None
    if kept.name == "keep":
        if kept.detail != ("protected", "t", "top", None, "upto") or not _is_all(kept.args[2]):
            return None
        worth, kept = kept.args[1], kept.args[0]
        holes = fill(_CARE, str(worth))
        if _is_state(worth):
            state = str(worth.detail[0])
        elif holes is not None and holes["over"] in ("sum", "mean", "max"):
            asked = holes["over"]
        else:
            return None
    first, newest = _ends(kept)
    if first is None or newest is None:
        return None
    return KeepOf(state, asked, first, newest, line)


def _is_state(op: Op) -> bool:
    return op.name == "state" and op.axes == ("h", "t")


def _is_all(op: Op) -> bool:
    return op.name == "positional" and op.detail[0] == "all"


def _ends(op: Op) -> tuple[str | None, str | None]:
    """How many first and newest rows a set names, as Python text over params."""
    if op.name == "map" and op.detail == ("or",):
        (first, nothing), (no, newest) = (_ends(arg) for arg in op.args)
        return (first, newest) if nothing == no == "0" else (None, None)
    if op.name == "positional" and op.detail[0] in ("sink", "recent"):
        amount = host_number(op.args[0], "params", {})
        return (amount, "0") if op.detail[0] == "sink" else ("0", amount)
    return None, None
