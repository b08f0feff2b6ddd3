"""What a method does in a decode step, as far as kernels know it: facts that the compiler proves and a generated manager carries.

A hook that matches none of these shapes is named in `reasons`, and the method's decode steps run the eager path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .layout import Part, Position

Reduction = Literal["sum", "mean", "max"]


@dataclass(frozen=True, slots=True)
class Mass:
    """after_decode_attention: `state[t, h] += over g of the newest query's probs`."""

    state: str
    over_group: Reduction


@dataclass(frozen=True, slots=True)
class PageChoice:
    """build_decode_selection: the newest page and the pages of the largest bound, `pages` of them in all, where `len > budget`.

    bound = over g of sum over c of max(q * low, q * high). Params by name: budget in tokens, least in pages; first and newest: pages that are always read.
    """

    low: str
    high: str
    over_group: Reduction
    budget: str
    least: str
    first: str
    newest: str


class At(NamedTuple):
    """What the host knows of a request in a step: rows held with the new one, and those of the prompt when it ended."""

    params: Mapping[str, object]
    held: int
    prompt: int


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """after_decode_attention in some layers chooses tokens that the layers after it read, all heads the same: the shared set `state`.

    build_decode_selection in those layers reads the `first` and the `newest` tokens and the `best` of the others. A token is worth the largest over
    all query heads of its share, the softmax of the newest query's logits over those others, or else of its logit.
    """

    state: str
    shares: bool
    first: Callable[[At], int]
    newest: Callable[[At], int]
    best: Callable[[At], int]


@dataclass(frozen=True, slots=True)
class Keep:
    """finish_step: an eviction keeps the `first` and the `newest` rows, and of the others those of the largest `state`.

    asked: instead of a state, the newest query's probs rank them, reduced so over all query heads. Neither: no others stay.
    How many rows stay is what the manager's rows_after says.
    """

    state: str | None
    first: Callable[[Mapping[str, object]], int]
    newest: Callable[[Mapping[str, object]], int]
    asked: Reduction | None = None


@dataclass(frozen=True, slots=True)
class Moves:
    """finish_step: the oldest rows of the newest zone go to the zone `to`, as many as the manager's rows_after says; K and V may go apart."""

    zone: str
    to: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """`hooks` are those that the shapes below cover; finish_step among them only evicts or moves, when the host's counts say so.

    idle: hooks that a decode step runs and in which the method does nothing then, since it acts in prompts alone.
    turns_keys: K lies un-rotated, and attention turns it at its rank among the rows held. unkept: states, summaries and zones of the hooks that reasons name.
    """

    hooks: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    mass: Mass | None = None
    pages: PageChoice | None = None
    tokens: TokenChoice | None = None
    keep: Keep | None = None
    moves: Moves | None = None
    turns_keys: bool = False
    reasons: tuple[str, ...] = ()
    unkept: tuple[str, ...] = ()

    def asks_firsts(self, position: Position) -> bool:
        """Whether the first rows are asked by a query of their own: where a layout's positions are counted anew and K lies turned all the same."""
        return position == "rank" and not self.turns_keys

    @property
    def any_order(self) -> bool:
        """Whether rows may lie in any order, so that an eviction of one row moves one: no kernel takes a row's slot for its rank."""
        return self.keep is not None and self.tokens is None and self.pages is None and not self.turns_keys
