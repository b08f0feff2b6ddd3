"""A choice of single tokens that one layer makes for those after it: whether an attended set and the update of a shared set say that together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparsec.codegen.host_numbers import host_number
from sparsec.codegen.plan import Attend, Op, Step, Update

_LOGITS = "of_queries(logits, step)[i,h,g,t]"
_KNOWN = {"len": "at.held", "prompt_rows": "at.prompt"}


@dataclass(frozen=True, slots=True)
class TokensOf:
    """A TokenChoice of the runtime's DecodePlan, as generated text; line: of the hook that chooses."""

    state: str
    shares: bool
    first: str  # Python text over `at`, an At of the runtime
    newest: str
    best: str
    line: int

    def __str__(self) -> str:
        amounts = ", ".join(f"{name}=lambda at: {getattr(self, name)}" for name in ("first", "newest", "best"))
        return f'TokenChoice("{self.state}", {self.shares}, {amounts})'


def token_choice(reads: list[Step], chooses: list[Step], everything: frozenset[str], line: int) -> TokensOf | None:
    """reads: effects of the hooks before attention; chooses: of those after it, locals in place; everything: shared sets that begin as all tokens."""
    if len(reads) != 1 or len(chooses) != 1:
        return None
    read, choice = reads[0], chooses[0]
    if not isinstance(read, Attend) or not isinstance(choice, Update) or read.when is not None or choice.when is not None:
        return None
    if not choice.shared or choice.axes != ("t",) or choice.target not in everything:
        return None
    ends = _ends(list(_members(read.read)), choice.target)
    ranked = choice.value
    if ends is None or ranked.name != "rank" or ranked.detail != ("top", "t"):
        return None
    worth, candidates, best = ranked.args
    candidates = candidates.args[0] if candidates.name == "widen" else candidates
    shares = _shares(worth, candidates)
    texts = [host_number(amount, "at.params", _KNOWN) for amount in (*ends, best)]
    if shares is None or not _leaves_out(candidates, ends) or None in texts:
        return None
    first, newest, count = (str(text) for text in texts)
    return TokensOf(choice.target, shares, first, newest, count, line)


def _members(op: Op) -> Iterator[Op]:
    """The sets whose union a set is."""
    if op.name == "widen" or (op.name == "map" and op.detail == ("or",)):
        for arg in op.args:
            yield from _members(arg)
    else:
        yield op


def _ends(members: list[Op], state: str) -> tuple[Op, Op] | None:
    """How many first and newest tokens are read beside the shared set, once each."""
    found = {str(op.detail[0]) if op.name in ("positional", "shared") else op.name: op for op in members}
    if len(members) != 3 or set(found) != {"sink", "recent", state} or found[state].name != "shared":
        return None
    return found["sink"].args[0], found["recent"].args[0]


def _leaves_out(candidates: Op, ends: tuple[Op, Op]) -> bool:
    """Whether the candidates are all tokens but those at the ends."""
    gone: dict[str, str] = {}
    while candidates.name == "map" and candidates.detail == ("minus",):
        candidates, less = candidates.args
        if less.name != "positional" or less.detail[0] not in ("sink", "recent"):
            return False
        gone[str(less.detail[0])] = str(less.args[0])
    return candidates.name == "positional" and candidates.detail[0] == "all" and gone == {"sink": str(ends[0]), "recent": str(ends[1])}


def _shares(worth: Op, candidates: Op) -> bool | None:
    """Whether tokens are ranked by their share of the candidates (else by their logit), the best over all heads; None: by something else."""
    if worth.name != "reduce" or worth.detail != ("max", "i", "h", "g") or len(worth.args) != 1:
        return None
    given = worth.args[0]
    if str(given) == _LOGITS:
        return False
    if given.name != "smooth" or given.detail != ("softmax", "t", None) or len(given.args) != 2:
        return None
    return True if [str(arg) for arg in given.args] == [_LOGITS, str(candidates)] else None
