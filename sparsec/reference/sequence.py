"""Runs a method over one sequence: prompt chunks, then decode steps, with hooks in the language's order.

Per layer kv_write, build, before, attention, after, layer_end; then end_of_prompt over all layers, then finish_step. A binding that names
both of the last two fires once, at end_of_prompt, in the step that ends the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference import ensures, sets, tensors
from sparsec.reference.ensures import EnsureFailure
from sparsec.reference.evaluate import evaluate, truth
from sparsec.reference.moment import Moment, QueryBlock
from sparsec.reference.program import Program, Unsupported
from sparsec.reference.rows import Rows
from sparsec.reference.storage import Inputs, MissingInput, SequenceStorage
from sparsec.reference.values import Scalar, Term, Value, ordered

# The value of a let, the letters of its target, and where it was defined.
Observer = Callable[[str, Term, tuple[str, ...], Moment], None]


@dataclass(frozen=True, slots=True, eq=False)
class LayerOutput:
    """out [query, q_head, channel]; attended bool [query, q_head, token]; of the step's queries that the inputs hold."""

    positions: Tensor
    out: Tensor
    attended: Tensor


@dataclass(eq=False)
class Sequence:
    """`observe(name, value, letters, moment)` is called for every let; `failures` collects broken ensures if `check_ensures`."""

    program: Program
    inputs: Inputs
    prompt_len: int
    observe: Observer | None = None
    check_ensures: bool = False
    failures: list[EnsureFailure] = field(default_factory=list)
    outputs: list[LayerOutput] = field(default_factory=list)  # of the last step, by layer

    def __post_init__(self) -> None:
        self.storage = SequenceStorage(self.program, self.inputs)
        self.steps = 0
        self._facts: dict[str, Scalar] = {}
        self._prompt_rows: dict[int, Term] = {}

    @property
    def layers(self) -> int:
        return self.inputs.k.shape[0]

    # ---- steps -----------------------------------------------------------------------------

    def prefill(self, chunk: int | None, after: Callable[[Sequence], None] | None = None) -> None:
        """The whole prompt, in chunks from its first token; `after` is called after each."""
        size = chunk or self.prompt_len
        for start in range(0, self.prompt_len, size):
            self._step(min(size, self.prompt_len - start), prefilling=True)
            if after is not None:
                after(self)

    def decode(self, after: Callable[[Sequence], None] | None = None) -> None:
        """One teacher-forced token."""
        self._step(1, prefilling=False)
        self.steps += 1
        if after is not None:
            after(self)

    def _step(self, count: int, prefilling: bool) -> None:
        start = self.storage.tokens
        self.storage.append(count)
        self.storage.shared.clear()
        ends = prefilling and self.storage.tokens == self.prompt_len
        self._facts = {
            "prefilling": prefilling,
            "decoding": not prefilling,
            "prompt_done": ends or not prefilling,
            "steps": self.steps,
        }
        phase = "prefill" if prefilling else "decode"
        self.outputs = [self._layer(layer, start, phase) for layer in range(self.layers)]
        before = list(self.storage.rows)
        if ends:
            self._refuse_probe()
            self._settle("end_of_prompt", skip=None)
            for layer in range(self.layers):
                self._prompt_rows[layer] = tensors.per_head(self.storage.rows[layer].resident.sum(1))
        self._settle("finish_step", skip="end_of_prompt" if ends else None)
        self._check_after_step(before)

    def _layer(self, layer: int, start: int, phase: str) -> LayerOutput:
        first = max(start, self.inputs.q_start)
        positions = torch.arange(first, self.storage.tokens)
        whole = first == start
        block = QueryBlock(positions)
        self._fire("kv_write", layer, block, whole)
        read = self._fire(f"build_{phase}_selection", layer, block, whole)
        self._fire(f"before_{phase}_attention", layer, block, whole)
        output, block = self._attend(layer, block, read)
        self._fire(f"after_{phase}_attention", layer, block, whole)
        self._fire("layer_end", layer, block, whole)
        return output

    def _attend(self, layer: int, block: QueryBlock, read: Value | None) -> tuple[LayerOutput, QueryBlock]:
        """Attention of the step's queries over what they may see and what `attend` chose."""
        at = self._moment(layer, "attention", block)
        visible = at.rows.visible(block.positions)[:, :, None, :]
        mask = visible.expand(-1, -1, self.program.facts["group"], -1)
        if read is not None:
            mask = mask & read.over(("i", "h", "g", "t"))
        block = QueryBlock(block.positions, Value(mask, ("i", "h", "g", "t")))
        probs = tensors.read("probs", at.observing(block), t.Node()).data if block.positions.numel() else mask.to(self.inputs.math)
        out = torch.einsum("ihgt,thc->ihgc", probs, self.storage.read("V", layer))
        return LayerOutput(block.positions, out.flatten(1, 2), mask.flatten(1, 2)), block

    # ---- hooks -----------------------------------------------------------------------------

    def _fire(self, name: str, layer: int, block: QueryBlock, whole: bool) -> Value | None:
        """Run the bindings of a layer hook; the set that `attend` chose, if one did. `whole`: q covers all of the step's queries."""
        read = None
        for hook in self._bindings(name):
            if not whole:
                self._refuse_missing_queries(hook, name)
            mine = self._run(hook, name, layer, block)
            read = mine if mine is not None else read
        return read

    def _settle(self, name: str, skip: str | None) -> None:
        for layer in range(self.layers):
            for hook in self._bindings(name):
                if skip not in {other.text for other in hook.names}:
                    self._run(hook, name, layer, None)

    def _refuse_probe(self) -> None:
        """The extra pass over the prompt does not exist here: a binding that would run in it is refused."""
        for hook in self._bindings("probe_attention"):
            for layer in range(self.layers):
                at = self._moment(layer, "probe_attention", None)
                runs = hook.layers is None or evaluate(hook.layers, at)
                if runs and (hook.when is None or truth(hook.when, at) is not False):
                    raise Unsupported("`probe_attention`", hook)

    def _bindings(self, name: str) -> list[t.Hook]:
        return [hook for hook in self.program.method.of(t.Hook) if name in {other.text for other in hook.names}]

    def _run(self, hook: t.Hook, name: str, layer: int, block: QueryBlock | None) -> Value | None:
        at = self._moment(layer, name, block)
        if hook.layers is not None and not evaluate(hook.layers, at):
            return None
        guard = truth(hook.when, at) if hook.when is not None else True
        if guard is False:
            return None
        run = _HookRun(self, at, guard)
        run.statements(hook.body, guard)
        if self.check_ensures:
            self._check(ensures.of_lets(self.program, run.at, run.read))
        return run.read

    def _refuse_missing_queries(self, hook: t.Hook, name: str) -> None:
        for node in t.walk(hook):
            if isinstance(node, t.Ref) and node.name.text in ("Q", "probs", "logits"):
                start = self.inputs.q_start
                raise MissingInput(f"{name} (line {node.span.line}) observes queries before q_start = {start}; give q from the first token on")

    def _moment(self, layer: int, hook: str, block: QueryBlock | None) -> Moment:
        at = self.storage.moment(layer, hook, self._facts)
        if layer in self._prompt_rows:
            at.facts["prompt_rows"] = self._prompt_rows[layer]
        else:
            at.facts["prompt_rows"] = 0  # read only beside a condition that rules this step out (S513)
        return replace(at, block=block, selecting=hook.endswith("selection"))

    # ---- ensures ---------------------------------------------------------------------------

    def _check_after_step(self, before: list[Rows]) -> None:
        if not self.check_ensures:
            return
        for layer in range(self.layers):
            at = replace(self._moment(layer, "finish_step", None), builders=before[layer])
            self._check(ensures.after_step(self.program, at))

    def _check(self, broken: list[tuple[t.Ensure, int]]) -> None:
        step = 0 if self._facts["prefilling"] else self.steps + 1
        self.failures += [EnsureFailure(item.text, item.span.line, step, layer) for item, layer in broken]


@dataclass(eq=False)
class _HookRun:
    """One binding in one layer: the moment changes as statements define lets and change rows."""

    sequence: Sequence
    at: Moment
    guard: bool | Value
    read: Value | None = None

    def statements(self, body: tuple[t.Stmt, ...], guard: bool | Value) -> None:
        for statement in body:
            self._statement(statement, guard)

    def _statement(self, statement: t.Stmt, guard: bool | Value) -> None:
        storage, at = self.sequence.storage, self.at
        match statement:
            case t.Let():
                self._let(statement)
            case t.Assign():
                storage.assign(statement, evaluate(statement.value, at), guard, at)
            case t.Branch():
                self._branch(statement, guard)
            case t.Evict():
                kept = self._rows_of(sets.keep(statement.keep, at, evaluate), guard, otherwise=True)
                self._changed(at.rows.without(~kept))
            case t.Move():
                self._move(statement, guard)
            case t.Attend():
                self._attend(statement, guard)
            case _:
                raise Unsupported(f"the statement `{type(statement).__name__.lower()}`", statement)

    def _let(self, statement: t.Let) -> None:
        name = statement.target.name.text
        letters = tuple(index.name.text for index in statement.target.indices)
        value = evaluate(statement.value, self.at)
        self.at = replace(self.at, lets={**self.at.lets, name: (letters, value)})
        if self.sequence.observe is not None:
            self.sequence.observe(name, value, letters, self.at)

    def _branch(self, statement: t.Branch, guard: bool | Value) -> None:
        condition = truth(statement.condition, self.at)
        if isinstance(condition, bool):
            self.statements(statement.then if condition else statement.otherwise, guard)
            return
        self.statements(statement.then, _both(guard, condition))
        self.statements(statement.otherwise, _both(guard, Value(~condition.data, condition.letters)))

    def _move(self, statement: t.Move, guard: bool | Value) -> None:
        part = statement.component.text if statement.component is not None else None
        index = self.at.program.zone_index(statement.zone.text)
        assert index is not None, f"no zone is called {statement.zone.text}"
        rows = evaluate(statement.rows, replace(self.at, part=part))
        assert isinstance(rows, Value), "a move takes a set of rows"
        mask = self._rows_of(sets.as_rows(rows, self.at, statement), guard, otherwise=False) & self.at.rows.resident
        self.sequence.storage.encode(self.at.layer, mask, part, self.at.program.zones[index])
        self._changed(self.at.rows.moved(mask, part, index))

    def _attend(self, statement: t.Attend, guard: bool | Value) -> None:
        chosen = sets.keep(statement.read, self.at, evaluate)
        if isinstance(guard, Value):
            letters = ordered({*chosen.letters, "h"})
            chosen = Value(chosen.over(letters) | ~guard.over(letters), letters, base=("t",))
        self.read = Value(chosen.data, chosen.letters)

    def _rows_of(self, chosen: Value, guard: bool | Value, otherwise: bool) -> Tensor:
        """A set of rows as [kv_head, token]; heads whose guard does not hold get `otherwise`."""
        assert set(chosen.letters) <= {"h", "t"}, f"a set of rows depends on {chosen.letters}"
        rows = chosen.over(("h", "t")).expand(self.at.rows.resident.shape)
        return torch.where(guard.data[:, None], rows, otherwise) if isinstance(guard, Value) else rows

    def _changed(self, rows: Rows) -> None:
        self.sequence.storage.set_rows(self.at.layer, rows)
        self.at = self.at.with_rows(rows)


def _both(a: bool | Value, b: Value) -> bool | Value:
    if isinstance(a, bool):
        return b if a else False
    return Value(a.data & b.data, ("h",))
