"""Facts for people: one line per fact with its value, why it holds, and the spec line that decided."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

from sparsec.graph.estimate import Estimate, Held, Traffic
from sparsec.graph.facts import Facts, StoredFact, ZoneFact
from sparsec.graph.formulas import RowFormula
from sparsec.graph.queries import STEP, Observed
from sparsec.graph.scope import Because

WIDTH = 118
_COLUMNS = (20, 30)  # name, value; the reason takes the rest


@dataclass(frozen=True, slots=True)
class Line:
    """One fact: what it is called, its value, why, and the spec line (None: nothing in the spec decided)."""

    name: str
    value: str
    why: str = ""
    line: int | None = None


def fact_lines(facts: Facts) -> list[Line]:
    """Every fact, in the order in which a reader asks."""
    return [
        *_acts(facts),
        *(_rows(formula) for formula in facts.rows),
        _because("table scope", facts.table),
        _because("positions", facts.positions),
        *(_zone(zone) for zone in facts.zones),
        *([_because("K and V apart", facts.split)] if facts.split.value == "yes" else []),
        *(Line("state", _indexed(s.name, s.letters), _state_note(s.dtype, s.initial, s.shared), s.line) for s in facts.states),
        *(Line("summary", _indexed(s.name, s.letters), s.value, s.line) for s in facts.summaries),
        *_observed(facts),
        *(Line("across layers", flow.state, _flow(flow.writers, flow.readers), flow.line) for flow in facts.flow),
        _because("prefix reuse", facts.reuse),
        _because("chunk invariance", facts.chunks),
        *_capture(facts),
        *_parallel(facts),
        *_params(facts),
        Line("fingerprint", facts.fingerprint[:16], "of meaning and static params; cached state is reused only under the same"),
    ]


def _because(name: str, fact: Because) -> Line:
    return Line(name, fact.value, fact.why, fact.line)


_WORDS = {"evict": "evicts rows", "move": "moves rows to a zone", "attend": "selects rows to read", "blend": "reads extra rows"}


def _acts(facts: Facts) -> list[Line]:
    found = [Line("acts", _WORDS[a.kind], f"{a.text}, on {' and '.join(a.hooks)}", a.line) for a in facts.actions]
    return found or [Line("acts", "nothing", "every row is kept and read")]


def _rows(formula: RowFormula) -> Line:
    name = {"read": "rows read", "flushed": "rows flushed"}.get(formula.what, f"rows, {formula.what}")
    place = f"{formula.zone} {formula.part}: " if formula.zone else ""
    notes = [] if formula.exact else ["a bound or average: scores decide the exact number"]
    if formula.layers is not None:
        notes.append(f"in layers with {formula.layers}")
    if formula.what == "flushed":
        notes.append("total = prompt + new")
    if formula.where and formula.what != "decode peak":
        notes.append("with " + "; ".join(formula.where))
    return Line(name, place + formula.rows, "; ".join(notes), formula.line)


def _zone(zone: ZoneFact) -> Line:
    stores = ", ".join(_stored(store) for store in zone.stores) or "raw K and V in the model's dtype"
    return Line("zone", zone.name, f"{stores}, on {zone.tier}", zone.line)


def _stored(store: StoredFact) -> str:
    if store.bits is None:
        return f"{store.name} {store.dtype}"
    group = f", {store.block} along {store.along} share a scale{' and a minimum' if store.zero else ''}" if store.block else ""
    return f"{store.name} {store.bits} bit{group}"


def _indexed(name: str, letters: tuple[str, ...]) -> str:
    return f"{name}[{', '.join(letters)}]" if letters else name


def _state_note(dtype: str, initial: str, shared: bool) -> str:
    return f"{dtype}, starts as {initial}" + (", a value of one step, shared by layers" if shared else "")


def observed_text(use: Observed) -> str:
    queries = "the step's queries" if use.queries == STEP else f"queries {use.queries}"
    return f"{use.tensor} of {queries}"


def _observed(facts: Facts) -> list[Line]:
    if not facts.observed:
        return [Line("observes", "no scores", "attention returns its output alone")]
    lines = []
    for use in facts.observed:
        reduced = " then ".join(use.reduces) or "as they are"
        lines.append(Line("observes", observed_text(use), f"{reduced}, in {' and '.join(use.hooks)}", use.line))
    if facts.ring is not None:
        lines.append(Line("queries kept", facts.ring, "newest Q per layer, whatever the chunk size"))
    return lines


def _flow(writers: tuple[str, ...], readers: tuple[str, ...]) -> str:
    return f"written {'; '.join(writers)}; read {'; '.join(readers)}"


def _capture(facts: Facts) -> list[Line]:
    if facts.capture.whole_step:
        return [Line("CUDA graph", "the whole decode step", "counts change at most once, when the prompt ends")]
    outside = [Line("", f"outside: {part.value}", part.why, part.line) for part in facts.capture.outside]
    return [Line("CUDA graph", "the layers of a decode step"), *outside]


def _parallel(facts: Facts) -> list[Line]:
    if not facts.parallel:
        return [Line("tensor parallel", "nothing to combine", "no reduction runs over KV heads")]
    return [_because("tensor parallel", part) for part in facts.parallel]


def _params(facts: Facts) -> list[Line]:
    lines = []
    for set_at, name, why in (("request", "per request", "a request may set these"), ("compile", "static", "these are compiled in")):
        chosen = [param for param in facts.params if param.set_at == set_at]
        if chosen:
            sized = [f"{param.name} bounds {' and '.join(param.bounds)}" for param in chosen if param.bounds]
            lines.append(Line(name, ", ".join(param.name for param in chosen), "; ".join(sized) or why))
    return lines


# ---- layout -----------------------------------------------------------------------------------


def table(lines: list[Line]) -> str:
    """Columns fact, value, why, spec line; long cells wrap."""
    name, value = _COLUMNS
    why = WIDTH - name - value - 8
    rows = [f"{'fact':<{name}} {'value':<{value}} {'why':<{why}} line"]
    rows.append(f"{'-' * (name - 1):<{name}} {'-' * (value - 1):<{value}} {'-' * (why - 1):<{why}} ----")
    previous = ""
    for line in lines:
        cells = (_wrapped(line.value, value - 1), _wrapped(line.why, why - 1))
        for index in range(max(map(len, cells))):
            first, second = (cell[index] if index < len(cell) else "" for cell in cells)
            label = line.name if index == 0 and line.name != previous else ""
            number = str(line.line) if index == 0 and line.line is not None else ""
            rows.append(f"{label:<{name}} {first:<{value}} {second:<{why}} {number:>4}".rstrip())
        previous = line.name
    return "\n".join(rows)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, width, break_on_hyphens=False) or [""]


def explain_text(facts: Facts, path: str, cites: tuple[str, ...], params: dict[str, object], estimate: Estimate | None) -> str:
    """The whole page: title, facts, and what they mean on a model."""
    parts = [f"{facts.method}: {facts.doc}" if facts.doc else facts.method, ", ".join((path, *cites)), "", table(fact_lines(facts))]
    if estimate is not None:
        parts += ["", *_estimate(estimate, params)]
    return "\n".join(parts) + "\n"


def _estimate(estimate: Estimate, params: dict[str, object]) -> list[str]:
    values = ", ".join(f"{name}={_value(value)}" for name, value in params.items()) or "no params"
    bound = "" if estimate.exact else " (upper bounds: scores decide the exact numbers)"
    lines = [f"on {estimate.model}, {estimate.dtype}, with {values}", ""]
    lines.append(f"dense KV per token, all layers: {size(estimate.bytes_per_token)}")
    lines.append(f"KV bytes of one request{bound}:")
    lines.append(f"  {'prompt':>9} {'peak':>11} {'after prompt':>13} {'dense':>11} {'held':>7}")
    lines += [_held(entry) for entry in estimate.held]
    lines += _traffic(estimate.traffic)
    return lines + [f"warning: {text}" for text in estimate.warnings]


def _value(value: object) -> str:
    if isinstance(value, frozenset):
        return "{" + ", ".join(map(str, sorted(value))) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _held(entry: Held) -> str:
    share = entry.after_prompt / entry.dense
    return f"  {entry.tokens:>9,} {size(entry.peak):>11} {size(entry.after_prompt):>13} {size(entry.dense):>11} {share:>7.1%}"


def _traffic(traffic: Traffic) -> list[str]:
    parts = {"weights": traffic.weights, "K and V": traffic.rows, "summaries": traffic.summaries, "states": traffic.states}
    spent = ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)
    return [
        f"one decode step at {traffic.context:,} tokens, batch {traffic.batch}, moves {size(traffic.total)}: {spent}",
        f"dense moves {size(traffic.weights + traffic.dense_rows)}, so the ideal gain is {traffic.gain:.2f}x",
    ]


def size(count: float) -> str:
    """Bytes in binary units with three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
        count /= 1024
    raise AssertionError("unreachable: GiB takes everything")
