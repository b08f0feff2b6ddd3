"""One seed of one method: a tiny model, params, traces, and the runs on them, each made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch

from sparsec.diagnostics import SpecError
from sparsec.dsl import tree as t
from sparsec.dsl.check import check
from sparsec.dsl.checked import Checked
from sparsec.dsl.specialise import StaticValue, specialise, static_params
from sparsec.graph.program import Program as GraphProgram
from sparsec.graph.reuse import chunk_invariance
from sparsec.reference import Program
from sparsec.reference.program import Unsupported
from sparsec.reference.storage import MissingInput
from sparsec.reference.values import Scalar
from sparsec.verify.compare import Difference
from sparsec.verify.compiled import NotCompiled, compilation_of, compile_method
from sparsec.verify.ensures import prepared
from sparsec.verify.kernels import run_on_kernels
from sparsec.verify.machine import Machine
from sparsec.verify.oracle import Run, interpret
from sparsec.verify.params import Range, draw
from sparsec.verify.property import Violation
from sparsec.verify.ranges import facts_of, range_of
from sparsec.verify.report import Where
from sparsec.verify.spec import statements
from sparsec.verify.traces import Inputs, Shape
from sparsec_runtime.cache import CacheManager

# What a run may end in when a method meets numbers that it was not made for: reported with the trace, like any other violation.
RUN_FAILURES = (
    AssertionError, RuntimeError, ValueError, TypeError, NameError, AttributeError, LookupError, ArithmeticError, MissingInput,
)  # fmt: skip


LONGEST_PROMPT = 4096  # a chunk that holds every prompt


class Crash(Exception):
    """A run that did not come to its end."""

    def __init__(self, target: str, inputs: Inputs, chunk: int | None, error: Exception, line: int | None = None) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.target, self.inputs, self.chunk, self.line = target, inputs, chunk, line


Result = TypeVar("Result")


class NotRunnable(Exception):
    """The oracle or the target does not know a construct of the method: properties that need it are skipped, and say so."""


class NotBuilt(NotRunnable):
    """The generated manager cannot be made: one property says so, the others are skipped."""


@dataclass(eq=False)
class Case:
    """`specialised`: the method with its static params replaced."""

    checked: Checked
    specialised: Checked
    seed: int
    shape: Shape
    params: dict[str, Scalar]
    chunk: int
    pinned: frozenset[str] = frozenset()
    traces: tuple[Inputs, ...] = ()
    _runs: dict[tuple, Run] = field(default_factory=dict)

    @classmethod
    def build(cls, checked: Checked, seed: int, shape: Shape, params: dict[str, Scalar], chunk: int, pinned: frozenset[str]) -> Case | None:
        """None if the method refuses these params for this model."""
        static = {name: _static(params[name]) for name in static_params(checked.method)}
        facts = {name: value for name, value in facts_of(shape, chunk).items() if name != "chunk"}
        try:
            specialised = check(specialise(checked, static), checked.source, facts, strict=False)
        except SpecError:
            return None
        return cls(checked, specialised, seed, shape, params, chunk, pinned)

    def with_traces(self, traces: tuple[Inputs, ...]) -> Case:
        return replace(self, traces=traces, _runs={})

    def resized(self, sizes: Mapping[str, Scalar]) -> Case | None:
        """The same case with other sizes; the params that these leave out of range go to their defaults."""
        params: dict[str, Scalar] = {}
        for name in self.units:
            legal = range_of(self._param(name), self.method, params, self.facts)
            value = sizes.get(name, self.params[name])
            params[name] = value if legal.holds(value) else legal.default
        return Case.build(self.checked, self.seed, self.shape, params, self.chunk, self.pinned)

    # ---- the method ------------------------------------------------------------------------

    @property
    def method(self) -> t.Method:
        return self.checked.method

    @property
    def special(self) -> t.Method:
        return self.specialised.method

    @property
    def units(self) -> dict[str, str]:
        """Param -> unit, in order of declaration."""
        return {param.name.text: param.unit.text for param in self.method.of(t.Param)}

    @property
    def sizes(self) -> dict[str, int]:
        """Params that count rows, in tokens."""
        page = self.params.get("page_size", 1)
        found = {name: self.params[name] for name, unit in self.units.items() if unit in ("tokens", "pages")}
        return {name: value * page if self.units[name] == "pages" else value for name, value in found.items()}

    @cached_property
    def facts(self) -> dict[str, Scalar]:
        return facts_of(self.shape, self.chunk)

    def range_of(self, name: str, others: Mapping[str, Scalar]) -> Range:
        """What a param may be when some of the others change."""
        return range_of(self._param(name), self.method, {**self.params, **others}, self.facts)

    def _param(self, name: str) -> t.Param:
        return next(param for param in self.method.of(t.Param) if param.name.text == name)

    @cached_property
    def chunk_invariance(self) -> str:
        """"derived", "declared" or "no"."""
        return chunk_invariance(GraphProgram(self.specialised)).value

    # ---- runs ------------------------------------------------------------------------------

    def reference(self, inputs: Inputs, chunk: int | None = -1) -> Run:
        """The oracle's run; chunk -1 is the case's own, None the whole prompt at once."""
        size = self.chunk if chunk == -1 else chunk
        return self._once(("reference", inputs, size), inputs, size, lambda: interpret(self._program, inputs, size))

    def torch(self, inputs: Inputs, chunk: int | None = -1) -> Run:
        """The run of the generated manager, alone on a fresh machine."""
        size = self.chunk if chunk == -1 else chunk
        return self._once(("torch", inputs, size), inputs, size, lambda: self.machine(size).run(inputs, self.request_params))

    def triton(self, inputs: Inputs, chunk: int | None = -1) -> Run:
        """The run of the method's decode kernels, after a prompt as on torch."""
        size = self.chunk if chunk == -1 else chunk
        return self._once(("triton", inputs, size), inputs, size, lambda: self._on_kernels(inputs, size))

    def run(self, target: str, inputs: Inputs, chunk: int | None = -1) -> Run:
        return {"reference": self.reference, "torch": self.torch, "triton": self.triton}[target](inputs, chunk)

    def machine(self, chunk: int | None = -1) -> Machine:
        """A fresh machine with the generated manager."""
        size = self.chunk if chunk == -1 else chunk
        return Machine(self._compiled[0], self.shape, size or LONGEST_PROMPT)

    def _on_kernels(self, inputs: Inputs, chunk: int | None) -> Run:
        from sparsec.replay_triton import NoKernels

        params = self.request_params  # compiled, or a reason why not
        try:
            return run_on_kernels(compilation_of(self.checked.source, self.params, self.facts), params, inputs, chunk)
        except NoKernels as unknown:
            raise NotRunnable(str(unknown)) from unknown

    @property
    def request_params(self) -> dict[str, Scalar]:
        """The values of the params that a request gives."""
        return self._compiled[1]

    @cached_property
    def _compiled(self) -> tuple[type[CacheManager], dict[str, Scalar]]:
        try:
            return compile_method(self.checked.source, self.params, self.facts)
        except NotCompiled as unknown:
            raise NotRunnable(str(unknown)) from unknown
        except RUN_FAILURES as error:
            raise NotBuilt(f"the torch target could not be built: {type(error).__name__}: {error}") from error

    def variant(self, number: int) -> dict[str, Scalar]:
        """Other values of the params that a request may give, legal beside the static ones."""
        values: dict[str, Scalar] = {}
        for name in self.units:
            legal = range_of(self._param(name), self.method, values, self.facts)
            fixed = name not in self.request_params or name in self.pinned
            value = self.params[name] if fixed else draw(name, legal, self.seed, self.shape.layers, 1000 + number)
            values[name] = value if legal.holds(value) else self.params[name]
        return {name: values[name] for name in self.request_params}

    def stable(self, inputs: Inputs, chunk: int | None = -1) -> bool:
        """Whether noise of the size of rounding leaves all choices as they are."""
        steps = self.reference(inputs, chunk).steps
        for seed in range(4):
            noisy = self.reference(inputs.perturbed(seed), chunk).steps
            for one, other in zip(steps, noisy, strict=True):
                for mine, theirs in zip((*one.kept, *one.attended), (*other.kept, *other.attended), strict=True):
                    if not torch.equal(mine, theirs):
                        return False
        return True

    @cached_property
    def _program(self) -> Program:
        return Program.of(prepared(self.method), self.params, self.facts)

    def _once(self, key: tuple, inputs: Inputs, chunk: int | None, make: Callable[[], Run]) -> Run:
        if key not in self._runs:
            self._runs[key] = self.guarded(key[0], inputs, make, chunk)
        return self._runs[key]

    def guarded(self, target: str, inputs: Inputs, run: Callable[[], Result], chunk: int | None = None) -> Result:
        """The result of a run, or why there is none: NotRunnable or Crash."""
        try:
            return run()
        except Unsupported as unknown:
            raise NotRunnable(str(unknown)) from unknown
        except RUN_FAILURES as error:
            raise Crash(target, inputs, chunk, error) from error

    # ---- reports ---------------------------------------------------------------------------

    def line_of(self, found: Difference) -> int:
        """The statement most likely behind a difference: what chose rows, or the first that acts at all."""
        return self.acting_line((t.Evict, t.Attend, t.Move) if found.choice else (t.Assign, t.Move, t.Evict, t.Attend))

    def acting_line(self, kinds: tuple[type[t.Stmt], ...] = (t.Evict, t.Move, t.Attend, t.Assign)) -> int:
        """The first statement of the first kind that the method has; a method that does nothing begins somewhere too."""
        for kind in kinds:
            for stmt in statements(self.special, kind):
                return stmt.span.line
        return self.method.span.line

    def where(self, found: Violation) -> Where:
        inputs = found.inputs
        return Where(
            str(self.shape), found.params or self.params, inputs.kind, inputs.prompt_len, inputs.new, found.chunk or self.chunk,
            found.step, found.layer, found.head,
        )  # fmt: skip


def _static(value: Scalar) -> StaticValue:
    if isinstance(value, frozenset):
        return t.SetLiteral(tuple(t.Int(layer) for layer in sorted(value)))
    return value
