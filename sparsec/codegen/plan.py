"""The emit plan: what every hook binding does, as small typed ops. Decisions end here; targets and templates only write text.

An op names what is computed, over which index letters, and nothing about how. A target matches patterns of ops (the Triton
target its kernel skeletons) and prints the rest as the torch target does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Detail = str | int | float | bool | None

LETTERS = ("l", "i", "h", "g", "t", "s", "p", "slot", "b")  # canonical axis order; other letters follow, then LAST
LAST = ("c", "d", "x", "y")


def canonical(letters: frozenset[str] | set[str]) -> tuple[str, ...]:
    """The letters in the one order in which every tensor of generated code has its axes."""
    others = sorted(letters - set(LETTERS) - set(LAST))
    return tuple(a for a in (*LETTERS, *others, *LAST) if a in letters)


@dataclass(frozen=True, slots=True)
class Op:
    """One value. `axes`: its index letters in canonical order, the batch row not counted.

    kind: "int", "ratio" (float64), "real" (float32), "model" (the model's dtype), "bool" or "set" (a mask over its members).
    host: a Python number, equal for all rows. thin: axis h has size 1 (the value is one for all heads of the layer).
    support: the mask of entries where a ranked or windowed value is defined; None means every valid row.
    """

    name: str
    args: tuple[Op, ...] = ()
    detail: tuple[Detail, ...] = ()
    axes: tuple[str, ...] = ()
    kind: str = "int"
    host: bool = False
    thin: bool = False
    support: Op | None = field(default=None, compare=False)

    @property
    def free(self) -> frozenset[str]:
        """The letters on which the value truly depends."""
        return frozenset(self.axes) - ({"h"} if self.thin else frozenset())

    def __str__(self) -> str:
        inner = [*(str(d) for d in self.detail), *(str(a) for a in self.args)]
        call = f"{self.name}({', '.join(inner)})" if inner else self.name
        return f"{call}[{','.join(self.axes)}]" if self.axes else call


def walk(op: Op) -> Iterator[Op]:
    """The op and everything below it, parents first."""
    yield op
    for arg in op.args:
        yield from walk(arg)


def _under(when: Op | None) -> str:
    return "" if when is None else f" where {when}"


@dataclass(frozen=True, slots=True)
class Bind:
    """`name = value`; name is a Python identifier that is unique in its function."""

    name: str
    value: Op
    line: int

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """`name` = the reduction `fn` (sum, mean, max, min) over all blocks of the step's queries of `value` (i already reduced)."""

    name: str
    fn: str
    value: Op
    line: int

    def __str__(self) -> str:
        return f"{self.name} = {self.fn} over blocks of {self.value}"


@dataclass(frozen=True, slots=True)
class Skip:
    """Leave the function unless the condition holds: a Python bool, or for at least one row."""

    condition: Op
    line: int

    def __str__(self) -> str:
        return f"return unless {self.condition}"


@dataclass(frozen=True, slots=True)
class Update:
    """A state or shared state takes a new value in the rows of `when`."""

    target: str
    shared: bool
    axes: tuple[str, ...]
    value: Op
    when: Op | None
    line: int

    def __str__(self) -> str:
        return f"{self.target}[{','.join(self.axes)}] := {self.value}{_under(self.when)}"


@dataclass(frozen=True, slots=True)
class Evict:
    keep: Op  # a set over (h, t)
    when: Op | None
    line: int

    def __str__(self) -> str:
        return f"evict keep {self.keep}{_under(self.when)}"


@dataclass(frozen=True, slots=True)
class Attend:
    read: Op  # a set of tokens
    when: Op | None
    line: int

    def __str__(self) -> str:
        return f"attend {self.read}{_under(self.when)}"


@dataclass(frozen=True, slots=True)
class Move:
    part: str | None
    rows: Op
    zone: str
    when: Op | None
    line: int

    def __str__(self) -> str:
        return f"move {self.part or 'K and V'} of {self.rows} to {self.zone}{_under(self.when)}"


@dataclass(frozen=True, slots=True)
class Record:
    """The value of a `let`, for a trace; only in compilations made with `record`."""

    name: str
    value: Op
    line: int

    def __str__(self) -> str:
        return f"record {self.name} = {self.value}"


Step = Bind | Accumulate | Skip | Update | Evict | Attend | Move | Record


@dataclass(frozen=True, slots=True)
class Binding:
    """One `on ... { }` of the spec: one function of kernels.py.

    guard: Python text over `layer` and `model`, or None; guard_line: where it stands. params: dynamic params that the body reads.
    """

    function: str
    hooks: tuple[str, ...]
    guard: str | None
    params: tuple[str, ...]
    steps: tuple[Step, ...]
    line: int


@dataclass(frozen=True, slots=True)
class CodecPlan:
    """An integer group codec of one part of a zone; `store` is the name of its codes in the spec."""

    store: str
    bits: int
    along: str
    block: int
    zero: bool


@dataclass(frozen=True, slots=True)
class ZonePlan:
    name: str
    key: CodecPlan | None
    value: CodecPlan | None


@dataclass(frozen=True, slots=True)
class StatePlan:
    name: str
    letters: tuple[str, ...]
    dtype: str
    initial: str  # Python literal
    shared: bool


@dataclass(frozen=True, slots=True)
class SummaryPlan:
    """`value` reads the tensors of `pages` and is reduced over the slots of each page."""

    name: str
    letters: tuple[str, ...]
    dtype: str
    value: Op
    line: int


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    scope: str  # "shared" | "layer" | "head"
    position: str  # "logical" | "rank"
    page_size: int | None  # None: the runtime chooses
    ring: str | None  # Python text over `params` and `model`: newest queries to keep per layer
    zones: tuple[ZonePlan, ...]
    split: bool
    states: tuple[StatePlan, ...]
    summaries: tuple[SummaryPlan, ...]
    evicts: bool
    observes: bool


@dataclass(frozen=True, slots=True)
class ParamPlan:
    """`low`, `high`, `default`: Python text over `params` and `model`; high is None where the range is open."""

    name: str
    unit: str
    static: bool
    low: str | None
    high: str | None
    choices: tuple[str, ...]
    default: str
    doc: str | None


@dataclass(frozen=True, slots=True)
class CountPlan:
    """What an evict or move does to the rows that the host counts: Python text over params, model, layer, rows, length.

    lets: (name, value) in order. after: assignments to `rows`.
    """

    condition: str
    lets: tuple[tuple[str, str], ...]
    when: str | None
    after: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Plan:
    method: str
    doc: str | None
    layout: LayoutPlan
    params: tuple[ParamPlan, ...]
    bindings: tuple[Binding, ...]
    counts: tuple[CountPlan, ...]
    letters: tuple[tuple[str, str], ...]  # letter, domain: the legend
