"""What a compiled method tells the runtime about its storage: zones, states, summaries, table scope. Plain data; knows no tensors.

Words as in the language: a zone holds rows, a row is the K and V of one token in one layer and head, a page is `page_size` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Literal

Scope = Literal["shared", "layer", "head"]
Position = Literal["logical", "rank"]
Part = Literal["K", "V"]
PARTS: tuple[Part, Part] = ("K", "V")

WORD_BITS, WORDS_OF_A_SPAN = 16, 16
DEFAULT_PAGE_SIZE = 16


def span_of(bits: int) -> int:
    """Consecutive slots whose codes of so many bits share their words (codecs.py)."""
    return WORDS_OF_A_SPAN * WORD_BITS // bits


class LayoutError(ValueError):
    """A method cannot be laid out for this model: says what does not fit and what would."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Group quantiser: `bits`-wide codes; one scale (and, with `zero`, one minimum) per `block` values along tokens ("t") or channels ("c")."""

    bits: int
    along: Literal["t", "c"]
    block: int
    zero: bool = True
    kind: Literal["int"] = "int"

    @property
    def span(self) -> int:
        """Consecutive slots whose codes share their words."""
        return span_of(self.bits)

    @property
    def page_multiple(self) -> int:
        """A page holds whole spans and whole blocks of tokens."""
        return lcm(self.span, self.block if self.along == "t" else 1)


@dataclass(frozen=True, slots=True)
class ZoneLayout:
    """One zone; a part without a codec is stored raw in the model's dtype."""

    name: str
    codecs: Mapping[str, Codec | None] = field(default_factory=lambda: {"K": None, "V": None})

    @property
    def raw(self) -> bool:
        return all(self.codecs.get(part) is None for part in PARTS)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """`letters` in canonical order. A set-valued state `s: set[t]` has letters ("t",) and dtype "bool". `shared`: a value of one step."""

    name: str
    letters: tuple[str, ...]
    dtype: str
    initial: float | int | bool
    shared: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)  # of declared domains, by letter

    @property
    def per_token(self) -> bool:
        return "t" in self.letters

    @property
    def per_page(self) -> bool:
        return "p" in self.letters


@dataclass(frozen=True, slots=True)
class SummaryLayout:
    """Derived per page, letters begin with p then h, then channels; the manager's `summary_<name>(view)` computes it."""

    name: str
    letters: tuple[str, ...]
    dtype: str = "model"


@dataclass(frozen=True, slots=True)
class Layout:
    """Storage of one compiled method.

    scope: rows counts are equal over layers and heads ("shared"), over heads ("layer"), or free ("head").
    position: K is stored rotated at pos ("logical") or un-rotated and rotated at its rank on read ("rank").
    ring(params, model facts): newest queries kept per layer of a request. split: K and V move between zones apart.
    """

    scope: Scope = "shared"
    position: Position = "logical"
    page_size: int = DEFAULT_PAGE_SIZE
    ring: Callable[[Mapping[str, object], Mapping[str, float | int]], int] | None = None
    zones: tuple[ZoneLayout, ...] = (ZoneLayout("main"),)
    split: bool = False
    states: tuple[StateLayout, ...] = ()
    summaries: tuple[SummaryLayout, ...] = ()
    evicts: bool = False
    observes: bool = False

    def page_size_of(self, zone: ZoneLayout) -> int:
        """Rows per page of a zone: `page_size`, enlarged to whole spans and blocks of its codecs."""
        codecs = [codec for codec in zone.codecs.values() if codec is not None]
        return lcm(self.page_size, *(codec.page_multiple for codec in codecs))

    @property
    def token_states(self) -> tuple[StateLayout, ...]:
        return tuple(state for state in self.states if state.per_token and not state.shared)

    @property
    def page_states(self) -> tuple[StateLayout, ...]:
        return tuple(state for state in self.states if state.per_page and not state.shared)

    @property
    def plain_states(self) -> tuple[StateLayout, ...]:
        """States of a request and layer (or of all layers, with letter l) that follow no row."""
        return tuple(state for state in self.states if not (state.per_token or state.per_page or state.shared))


@dataclass(frozen=True, slots=True)
class Counts:
    """What the host knows of one request in one layer: rows held per KV head (in head scope: of one head, or on average).

    rows[zone, part]: those whose part lies in the zone. Rows that the step brings are included.
    """

    length: int
    rows: Mapping[tuple[str, str], int]
    prompt_rows: int
    steps: int
    prompt_done: bool
