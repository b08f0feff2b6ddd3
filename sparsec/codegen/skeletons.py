"""Which kernel shapes the decode hooks of a plan have: what a generated manager's DECODE says, and why a hook has none.

A binding's locals are put in place and its one effect is compared, as text, with the texts below; a hole `{name}` is one name of the spec. Decides
on operations alone, so any method that says the same thing gets the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TypeVar

from sparsec.codegen.keep_rows import keep_rows
from sparsec.codegen.pattern import fill
from sparsec.codegen.plan import Accumulate, Attend, Bind, Binding, Evict, Move, Op, Plan, Skip, Step, Update, walk
from sparsec.codegen.token_choice import TokensOf, token_choice
from sparsec.codegen.turned_keys import turns_keys
from sparsec.codegen.zone_moves import zone_moves

DECODE_HOOKS = (
    "kv_write", "build_decode_selection", "before_decode_attention", "after_decode_attention", "layer_end", "finish_step",
)  # fmt: skip

_GIVEN = "{whole} over i of reduce({part}, i, reduce({over}, g, of_queries(probs, block)[i,h,g,t])[i,h,t])[h,t]"  # in decode of one query
_MASS = {  # how a state takes what the newest query gives its rows
    "+=": f"map(add, state({{state}})[h,t], {_GIVEN})[h,t]",
    "= the larger of itself and": f"map(greatest, state({{state}})[h,t], {_GIVEN})[h,t]",
    "=": _GIVEN,
}

_REACH = (
    "reduce(max, i, reduce(sum, c, map(greatest, map(mul, of_queries(Q, step)[i,h,g,c], summary({low})[h,p,c])[i,h,g,p,c], "
    "map(mul, of_queries(Q, step)[i,h,g,c], summary({high})[h,p,c])[i,h,g,p,c])[i,h,g,p,c])[i,h,g,p])[h,g,p]"
)
_FIRST = "map(lt, index(p)[p], param({first}))[p]"
_NEWEST = "map(ge, index(p)[p], map(sub, map(floordiv, map(sub, map(add, len, page_size), const(1)), page_size), param({newest})))[p]"
_PAGES = (
    "pages_to_tokens(keep(protected, p, top, None, upto, positional(open_page, None, None)[h,p], "
    f"map(where, map(or, {_FIRST}, {_NEWEST})[p], const(1e+30), reduce({{over}}, g, {_REACH})[h,p])[h,p], "
    "positional(all_pages, None, None)[h,p], widen(map(greatest, param({least}), map(floordiv, param({budget}), page_size)))[h])[h,p])[h,t]"
    " where map(gt, len, param({budget}))"
)
_ENVELOPE = "reduce({kind}, slot, split(t, p, read(K)[h,t,c])[h,p,slot,c], split(t, p, positional(all, None, None)[h,t])[h,p,slot])[h,p,c]"


@dataclass(frozen=True, slots=True)
class MassOf:
    """A Mass of the runtime's DecodePlan, as generated text, with what its kernel is written from."""

    state: str
    over: str
    how: str
    initial: str
    line: int

    def __str__(self) -> str:
        return f'Mass("{self.state}", "{self.over}")'


@dataclass(frozen=True, slots=True)
class PagesOf:
    """A PageChoice of the runtime's DecodePlan, likewise."""

    low: str
    high: str
    over: str
    amounts: tuple[str, ...]  # params: budget, least, first, newest
    line: int

    def __str__(self) -> str:
        return f"PageChoice({', '.join(_quoted(name) for name in (self.low, self.high, self.over, *self.amounts))})"


Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True)
class Skeletons:
    """fields: the arguments of DecodePlan by name, each of which prints as Python text; reasons: one for each hook that has no kernel."""

    fields: Mapping[str, object]
    reasons: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """Arguments of DecodePlan, one a line; none where no hook of the step is bound."""
        return [f"{name}={value}" for name, value in self.fields.items()]

    def fact(self, kind: type[Fact]) -> Fact | None:
        """The field of a kind, if the step has one."""
        return next((value for value in self.fields.values() if isinstance(value, kind)), None)


def match_skeletons(plan: Plan) -> Skeletons:
    """What of the plan's decode step is a kernel; nothing is matched in part, so one reason leaves the whole step to the torch target."""
    fields: dict[str, object] = {}
    hooks: list[str] = []
    reasons: list[str] = []
    idle: list[str] = []
    unkept: set[str] = set()
    for hook in DECODE_HOOKS:
        bound = [binding for binding in plan.bindings if hook in binding.hooks]
        bindings = [binding for binding in bound if not _only_in_prompts(binding)]
        if not bindings:
            idle += [hook] if bound else []
            continue
        found = _MATCHERS.get(hook, _no_kernel)(plan, bindings)
        if isinstance(found, str):
            reasons.append(f"line {bindings[0].line}, on {hook}: {found}")
            unkept |= _held_by(bindings)
        else:
            hooks.append(hook)
            fields |= found
    if hooks:
        fields = {"hooks": _tuple(hooks), **fields}
    if idle:
        fields["idle"] = _tuple(idle)
    if turns_keys(plan):
        fields["turns_keys"] = True
    if reasons:
        fields["reasons"] = _tuple(reasons)
    if unkept:
        fields["unkept"] = _tuple(sorted(unkept))
    return Skeletons(fields, tuple(reasons))


def _only_in_prompts(binding: Binding) -> bool:
    """Whether the binding leaves at once in a decode step."""
    return any(isinstance(step, Skip) and str(step.condition) == "prefilling" for step in binding.steps)


def only_in_decode(binding: Binding) -> bool:
    """Whether the binding leaves at once while a prompt is read."""
    return any(isinstance(step, Skip) and str(step.condition) == "map(not, prefilling)" for step in binding.steps)


Found = dict[str, object] | str


def _no_kernel(_plan: Plan, _bindings: list[Binding]) -> Found:
    return "no kernel skeleton runs at this hook"


def _mass(plan: Plan, bindings: list[Binding]) -> Found:
    why = "the kernel adds the sum, mean or max over g of the newest query's probs to one token state, puts it there, or keeps the larger"
    effects = _effects(bindings)
    if len(effects) != 1 or not isinstance(effects[0], Update) or effects[0].shared or effects[0].when is not None:
        return why
    target = effects[0].target
    state = next(state for state in plan.layout.states if state.name == target)
    for how, pattern in _MASS.items():
        holes = fill(pattern, str(effects[0].value))
        if holes is None or holes.get("state", target) != target or state.dtype != "f32" or state.letters != ("h", "t"):
            continue
        if holes["over"] in ("sum", "mean", "max") and {holes["whole"], holes["part"]} <= {"sum", "mean", "max", "min"}:
            return {"mass": MassOf(target, holes["over"], how, state.initial, bindings[0].line)}
    return why


def _pages(plan: Plan, bindings: list[Binding]) -> Found:
    why = "the kernel reads the newest page and the pages of the largest bound over each page's least and greatest keys"
    effects = _effects(bindings)
    if len(effects) != 1 or not isinstance(effects[0], Attend):
        return why
    text = f"{effects[0].read}{'' if effects[0].when is None else f' where {effects[0].when}'}"
    holes = fill(_PAGES, text)
    envelopes = {summary.name: str(summary.value) for summary in plan.layout.summaries}
    if holes is None or plan.layout.scope != "shared" or holes["over"] not in ("sum", "mean", "max"):
        return why
    if envelopes[holes["low"]] != _ENVELOPE.format(kind="min") or envelopes[holes["high"]] != _ENVELOPE.format(kind="max"):
        return why
    amounts = tuple(holes[name] for name in ("budget", "least", "first", "newest"))
    return {"pages": PagesOf(holes["low"], holes["high"], holes["over"], amounts, bindings[0].line)}


def _selection(plan: Plan, bindings: list[Binding]) -> Found:
    tokens, pages = _tokens(plan), _pages(plan, bindings)
    if tokens is None and isinstance(pages, str):
        return pages + ", or what sink(), recent() and a shared set name, where a hook after attention chooses that set's tokens between those ends"
    return pages if tokens is None else {"tokens": tokens}


def _after_attention(plan: Plan, bindings: list[Binding]) -> Found:
    tokens, mass = _tokens(plan), _mass(plan, bindings)
    if tokens is None and isinstance(mass, str):
        return mass + ", or chooses a shared set of tokens for a later attend by the best over all heads of their logits, or of the softmax of those"
    return mass if tokens is None else {"tokens": tokens}


def _tokens(plan: Plan) -> TokensOf | None:
    """A choice of tokens by one hook that the other reads; all heads read the same rows of one table."""
    reads, chooses = ([b for b in plan.bindings if hook in b.hooks and not _only_in_prompts(b)] for hook in ("build_decode_selection", "after_decode_attention"))
    everything = frozenset(state.name for state in plan.layout.states if state.shared and state.initial == "True")
    if plan.layout.scope != "shared" or not reads or not chooses:
        return None
    return token_choice(_effects(reads), _effects(chooses), everything, chooses[0].line)


def _moves(plan: Plan, bindings: list[Binding]) -> Found:
    """Evictions and moves run in bulk between two graphs, when the host's counts say that they are due."""
    if len(plan.layout.zones) > 1:
        moves = zone_moves(_effects(bindings), plan.layout, bindings[0].line)
        return "kernels move the oldest rows of the newest of two zones to the other, and no others" if moves is None else {"moves": moves}
    for binding in bindings:
        if not all(isinstance(step, Bind | Skip | Evict) for step in binding.steps):
            return "only evictions can wait for the end of a step"
    keep = None if plan.layout.summaries else keep_rows(_effects(bindings), bindings[0].line)  # the hook in torch derives summaries anew
    reads = any(op.name in ("of_queries", "window") for b in bindings for step in b.steps for _, root in _operands(step) for op in walk(root))
    if reads and (keep is None or plan.layout.scope != "shared"):
        return "an eviction that reads queries is a kernel where the newest query's probs, reduced over all heads, rank the rows of a shared table without summaries"
    return {} if keep is None else {"keep": keep}


_MATCHERS: Mapping[str, Callable[[Plan, list[Binding]], Found]] = {
    "after_decode_attention": _after_attention, "build_decode_selection": _selection, "finish_step": _moves,
}  # fmt: skip


def _held_by(bindings: list[Binding]) -> set[str]:
    """States, summaries and zones that the bindings read or change."""
    steps = [step for binding in bindings for step in binding.steps]
    read = {str(op.detail[0]) for step in steps for _, root in _operands(step) for op in walk(root) if op.name in ("state", "shared", "summary")}
    return read | {step.target for step in steps if isinstance(step, Update)} | {step.zone for step in steps if isinstance(step, Move)}


def _effects(bindings: list[Binding]) -> list[Step]:
    """What the bindings change, their locals put in place."""
    effects: list[Step] = []
    for binding in bindings:
        known: dict[str, Op] = {}
        for step in binding.steps:
            if isinstance(step, Bind):
                known[step.name] = _inlined(step.value, known)
            elif isinstance(step, Accumulate):
                value = _inlined(step.value, known)
                known[step.name] = Op(f"{step.fn} over i of {value}")
            elif not isinstance(step, Skip):
                effects.append(replace(step, **{field: _inlined(value, known) for field, value in _operands(step)}))
    return effects


def _inlined(op: Op, known: Mapping[str, Op]) -> Op:
    if op.name == "local":
        return known.get(str(op.detail[0]), op)
    return replace(op, args=tuple(_inlined(arg, known) for arg in op.args))


def _operands(step: Step) -> list[tuple[str, Op]]:
    """The fields of a step that hold an operation."""
    named = ((field, getattr(step, field, None)) for field in ("value", "keep", "read", "rows", "when", "condition"))
    return [(field, value) for field, value in named if isinstance(value, Op)]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', "'") + '"'


def _tuple(items: list[str]) -> str:
    text = f"({', '.join(_quoted(item) for item in items)}{',' if len(items) == 1 else ''})"
    return text if len(text) < 90 else "(\n" + "".join(f"            {_folded(item)},\n" for item in items) + "        )"


def _folded(item: str) -> str:
    """A long text as adjacent literals, one a line."""
    pieces = [_quoted(piece) for piece in wrap(item, 90, drop_whitespace=False)]
    return pieces[0] if len(pieces) == 1 else "\n            ".join(pieces)
