"""Kinds of nodes and edges of the hook graph. A node is data; what it may be connected to is in `spec.py`.

Graphs are networkx DiGraphs: keys are strings such as "rule:0" or "state:score", the dataclass is the attribute `node`
of a node and `edge` of an edge.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of the model's own: projections (rows stored), attention, sampling."""

    name: str

    @property
    def key(self) -> str:
        return f"stage:{self.name}"


@dataclass(frozen=True, slots=True)
class HookNode:
    """A point of the lifecycle at which some rule runs."""

    name: str

    @property
    def key(self) -> str:
        return f"hook:{self.name}"


@dataclass(frozen=True, slots=True)
class RuleNode:
    """One `on ... { }`. captured: runs inside the CUDA graph of a decode step; None until the capture pass, or if it never decodes."""

    index: int
    layers: str | None
    when: str | None
    line: int
    captured: bool | None = None

    @property
    def key(self) -> str:
        return f"rule:{self.index}"


@dataclass(frozen=True, slots=True)
class LetNode:
    """dead: no effect and no `ensure` reads it; nothing is generated for it."""

    rule: int
    name: str
    letters: tuple[str, ...]
    value: str
    line: int
    dead: bool = False

    @property
    def key(self) -> str:
        return f"let:{self.rule}:{self.name}"


@dataclass(frozen=True, slots=True)
class SetNode:
    """The rows that an action is about. `granularity`: letters for which there is one set each."""

    rule: int
    action: int
    text: str
    granularity: tuple[str, ...]
    line: int

    @property
    def key(self) -> str:
        return f"set:{self.rule}:{self.action}"


@dataclass(frozen=True, slots=True)
class ActionNode:
    """kind: update, evict, move, attend or blend; `index` counts the effects of the rule; target: the state or zone."""

    rule: int
    index: int
    kind: str
    text: str
    line: int

    @property
    def key(self) -> str:
        return f"action:{self.rule}:{self.index}"


@dataclass(frozen=True, slots=True)
class StateNode:
    """crosses_layers: set by the flow pass where one layer writes what another reads."""

    name: str
    letters: tuple[str, ...]
    dtype: str
    shared: bool
    line: int
    crosses_layers: bool = False

    @property
    def key(self) -> str:
        return f"state:{self.name}"


@dataclass(frozen=True, slots=True)
class SummaryNode:
    name: str
    letters: tuple[str, ...]
    value: str
    line: int

    @property
    def key(self) -> str:
        return f"summary:{self.name}"


@dataclass(frozen=True, slots=True)
class ZoneNode:
    """scope and position are set by their passes; line is None for the zone that every method has."""

    name: str
    tier: str
    stores: tuple[str, ...]
    line: int | None
    scope: str | None = None
    position: str | None = None

    @property
    def key(self) -> str:
        return f"zone:{self.name}"


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """Q, probs or logits of the step's queries ("step") or of the newest ("last(n)")."""

    tensor: str
    queries: str

    @property
    def key(self) -> str:
        return f"observed:{self.tensor}:{self.queries}"


Node = (
    Stage | HookNode | RuleNode | LetNode | SetNode | ActionNode | StateNode | SummaryNode | ZoneNode | ObservedNode
)


@dataclass(frozen=True, slots=True)
class Follows:
    """Lifecycle order."""


@dataclass(frozen=True, slots=True)
class Fires:
    """A hook runs a rule."""


@dataclass(frozen=True, slots=True)
class Contains:
    """A rule holds a let or an action; `order` within the rule."""

    order: int


@dataclass(frozen=True, slots=True)
class Reads:
    """From what is read to what reads it."""


@dataclass(frozen=True, slots=True)
class Chooses:
    """From a set to the action on it."""


@dataclass(frozen=True, slots=True)
class Writes:
    """From an action to the state or zone that it changes."""


@dataclass(frozen=True, slots=True)
class Derives:
    """From a zone to a summary of its rows."""


@dataclass(frozen=True, slots=True)
class Produces:
    """From a stage of the model to what a method observes of it."""


Edge = Follows | Fires | Contains | Reads | Chooses | Writes | Derives | Produces
