"""The torch target: the steps of a binding to the lines of a function. Decides spelling and nothing else."""

from __future__ import annotations

from collections import Counter

from sparsec.codegen.lower.walks import ops_of
from sparsec.codegen.plan import Accumulate, Attend, Bind, Binding, Evict, Move, Op, Record, Skip, Step, SummaryPlan, Update
from sparsec.codegen.torch_text import Text, Writer, python_name
from sparsec.codegen.torch_values import PRINTERS


def write_binding(binding: Binding, source: tuple[str, ...]) -> tuple[str, ...]:
    """The body of one function, indented by 4."""
    bound = {s.name for s in binding.steps if isinstance(s, Bind | Accumulate)}
    writer = Writer(source, Counter(ops_of(binding.steps)), PRINTERS, taken=bound | {python_name(p) for p in binding.params})
    for param in binding.params:
        writer.put(f'{python_name(param)} = view.param("{param}")')
    for step in binding.steps:
        _write_step(writer, step)
    return tuple(writer.lines)


def _write_step(w: Writer, step: Step) -> None:
    w.cite(step.line)
    match step:
        case Bind():
            w.assign(step.name, step.value)
            w.known[step.value] = step.name
        case Accumulate():
            _write_accumulated(w, step)
        case Skip():
            text = w.value(step.condition)
            w.put(f"if not {text.at(10)}:" if step.condition.host else f"if not {text.at(10)}.any():")
            w.put("    return")
        case Record():
            _write_record(w, step.name, step.value)
            if step.value.support is not None:
                _write_record(w, f"{step.name} where", step.value.support)
        case _ if step.when is not None and step.when.host:
            before = dict(w.known)
            w.put(f"if {w.value(step.when).text}:")
            w.indent += "    "
            _write_effect(w, step, None)
            w.indent, w.known = w.indent[:-4], before
            _forget(w)
        case _:
            _write_effect(w, step, step.when)


def _write_effect(w: Writer, step: Update | Evict | Move | Attend, when: Op | None) -> None:
    """What a statement changes; rows outside `when` keep what they have."""
    match step:
        case Update():
            value = w.aligned(step.value, w.short(step.value, 80), step.axes).text
            if when is not None:
                old = f'view.{"shared" if step.shared else "state"}("{step.target}")'
                value = f"torch.where({_masked(w, when, step.axes).text}, {value}, {old})"
            w.call("view.set_shared" if step.shared else "view.set_state", [f'"{step.target}"', value])
        case Evict():
            keep = w.short(step.keep, 90 if when is None else 64)
            w.call("view.evict", [_or_not(w, keep, when, ("h", "t"))])
        case Move():
            part = f'"{step.part}"' if step.part is not None else "None"
            rows = w.short(step.rows, 80 if when is None else 60)
            w.call("view.move", [part, rows.text if when is None else f"{rows.at(7)} & {_masked(w, when, ('h', 't')).at(8)}", f'"{step.zone}"'])
        case Attend():
            axes = ("i", "h", "g", "t")
            read = w.aligned(step.read, w.short(step.read, 64 if when is None else 36), axes)
            w.call("view.attend", [_or_not(w, read, when, axes)])
    if not isinstance(step, Attend):
        _forget(w)


def _write_record(w: Writer, name: str, value: Op) -> None:
    letters = ", ".join(f'"{a}"' for a in value.axes)
    w.call("view.record", [f'"{name}"', w.value(value).text, f"({letters}{',' if len(value.axes) == 1 else ''})"])


def _or_not(w: Writer, mask: Text, when: Op | None, axes: tuple[str, ...]) -> str:
    """The mask, and everything in rows where nothing is to happen."""
    return mask.text if when is None else f"{mask.at(5)} | ~{_masked(w, when, axes).at(10)}"


def _masked(w: Writer, when: Op, axes: tuple[str, ...]) -> Text:
    return w.aligned(when, w.value(when), axes)


def _forget(w: Writer) -> None:
    """Rows, zones or states changed: only names that the plan bound keep their values."""
    w.known = {op: name for op, name in w.known.items() if op.name in ("window", "step")}


def _write_accumulated(w: Writer, step: Accumulate) -> None:
    """A mass of the chunk's probs is one call, which the runtime does as the device does it best; anything else is a loop over blocks."""
    over_g = mass_over_group(step)
    if over_g is None:
        _write_loop(w, step)
    else:
        w.put(f'{step.name} = view.mass("{over_g}")')


def mass_over_group(step: Accumulate) -> str | None:
    """Which word where the step is the sum over queries of that reduction over g of probs: `sum[i](mean[g](probs[i, h, g, t]))`, `sum[i, g](...)`; or None."""
    value = step.value
    if step.fn != "sum" or value.name != "reduce" or len(value.args) != 1 or value.detail[0] != "sum":
        return None
    if sorted(map(str, value.detail[1:])) == ["g", "i"] and _is_probs(value.args[0]):
        return "sum"
    inner = value.args[0]
    grouped = inner.name == "reduce" and len(inner.args) == 1 and inner.detail[1:] == ("g",) and inner.detail[0] in ("sum", "mean", "max")
    return str(inner.detail[0]) if grouped and value.detail[1:] == ("i",) and _is_probs(inner.args[0]) else None


def _is_probs(op: Op) -> bool:
    return op.name == "of_queries" and op.detail == ("probs",) and op.args[0].name == "block"


def _write_loop(w: Writer, step: Accumulate) -> None:
    before = dict(w.known)
    w.put(f"{step.name} = None")
    w.put("for block in view.blocks():")
    w.indent += "    "
    part = w.fresh("part")
    w.assign(part, step.value)
    combined = f"torch.{step.fn}imum({step.name}, {part})" if step.fn in ("max", "min") else f"{step.name} + {part}"
    w.put(f"{step.name} = {part} if {step.name} is None else {combined}")
    w.indent = w.indent[:-4]
    w.known = before
    if step.fn == "mean":
        w.put(f"{step.name} = {step.name} / view.Q.shape[1]")


def write_summary(summary: SummaryPlan) -> tuple[str, ...]:
    writer = Writer((), Counter(), PRINTERS)
    writer.put(f"return {writer.value(summary.value, root=True).text}")
    return tuple(line.replace("view.", "pages.") for line in writer.lines)
