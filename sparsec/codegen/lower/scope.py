"""What a name means at one place of a method: the state of lowering one hook binding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from keyword import iskeyword

from sparsec.codegen.plan import Op, Step
from sparsec.dsl import tree as t
from sparsec.dsl.names import HOOKS

RESERVED = {"view", "ops", "torch", "kernels", "block", "pages", "step", "model", "params", "layer"}


@dataclass(frozen=True, slots=True)
class Names:
    """The declarations of a specialised method. `heads_differ`: heads hold different counts, so `len` has an h axis.

    page_size: rows per page where the method says it; nothing names pages where it does not.
    """

    method: t.Method
    letters: dict[str, str]
    heads_differ: bool
    params: dict[str, t.Param]
    states: dict[str, t.State]
    summaries: dict[str, t.Summary]
    zones: dict[str, t.Zone]
    layers: dict[str, t.Layers]
    record: frozenset[str] = frozenset()
    page_size: int | None = None

    @classmethod
    def of(
        cls, method: t.Method, letters: dict[str, str], heads_differ: bool, record: frozenset[str] = frozenset(),
        page_size: int | None = None,
    ) -> Names:  # fmt: skip
        return cls(
            method, letters, heads_differ,
            {p.name.text: p for p in method.of(t.Param)},
            {s.target.name.text: s for s in method.of(t.State)},
            {s.target.name.text: s for s in method.of(t.Summary)},
            {z.name.text: z for z in method.of(t.Zone)},
            {item.name.text: item for item in method.of(t.Layers)},
            record, page_size,
        )  # fmt: skip

    @property
    def row_axes(self) -> tuple[str, ...]:
        """Axes of `len` and of whatever counts rows."""
        return ("h",) if self.heads_differ else ()


@dataclass(slots=True)
class Scope:
    """Mutable while one binding is lowered. `queries`: where Q, probs and logits of index i come from just now.

    letters_of: as each let declares them. later: lets over the step's queries, lowered again in each block. stale: lets over rows that an eviction has moved. paged: token letter -> page letter inside `[t in p]`.
    """

    names: Names
    hooks: tuple[str, ...]
    lets: dict[str, Op] = field(default_factory=dict)
    letters_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    later: dict[str, t.Let] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=lambda: set(RESERVED))
    steps: list[Step] = field(default_factory=list)
    queries: Op | None = None
    paged: dict[str, str] = field(default_factory=dict)
    when: Op | None = None
    line: int = 0

    @property
    def in_blocks(self) -> bool:
        """The step may bring many queries per row, so those of index i come block by block."""
        return any("prefill" in HOOKS[h].phases and HOOKS[h].per == "layer" for h in self.hooks)

    @property
    def in_selection(self) -> bool:
        return any(h.startswith("build_") for h in self.hooks)

    def name(self, wish: str) -> str:
        """A free Python identifier."""
        base = wish + "_" if iskeyword(wish) or wish in RESERVED else wish
        found, n = base, 2
        while found in self.taken:
            found, n = f"{base}_{n}", n + 1
        self.taken.add(found)
        return found

    @contextmanager
    def reading(self, queries: Op) -> Iterator[None]:
        before, self.queries = self.queries, queries
        try:
            yield
        finally:
            self.queries = before

    @contextmanager
    def paging(self, token: str, page: str) -> Iterator[None]:
        before, self.paged = self.paged, {**self.paged, token: page}
        try:
            yield
        finally:
            self.paged = before

    @contextmanager
    def under(self, when: Op | None) -> Iterator[None]:
        before, self.when = self.when, when
        try:
            yield
        finally:
            self.when = before
