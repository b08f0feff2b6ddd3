"""All shipped methods side by side: the table of methods/README.md and the lines of `sparsec methods`."""

from __future__ import annotations

from sparsec.graph.facts import Facts
from sparsec.graph.printer import observed_text

HEADER = """# Methods

One method per file; the table below is what the compiler derives from them (`sparsec explain --table > methods/README.md`).
`sparsec explain METHOD` gives the reasons, with line numbers.

"""
COLUMNS = ("method", "what it does", "rows held after the prompt", "rows while decoding", "rows read per step")
COLUMNS += ("table", "positions", "scores observed", "across layers", "prefix reuse", "chunk invariance")


def markdown(methods: list[Facts]) -> str:
    """The whole README of the methods folder."""
    rows = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    rows += ["| " + " | ".join(_cell(cell) for cell in _row(facts)) + " |" for facts in methods]
    return HEADER + "\n".join(rows) + "\n"


def _row(facts: Facts) -> tuple[str, ...]:
    return (
        f"`{facts.method}`",
        facts.doc or "",
        _formula(facts, "after prompt"),
        _formula(facts, "flushed") or _formula(facts, "decode peak"),
        _formula(facts, "read") or "all",
        facts.table.value,
        facts.positions.value,
        scores(facts),
        ", ".join(flow.state for flow in facts.flow) or "-",
        facts.reuse.value,
        facts.chunks.value,
    )


def acts(facts: Facts) -> str:
    """Evicts, moves, selects: what a method may do to rows, in words."""
    kinds = (("evicts", "evict"), ("moves", "move"), ("selects", "attend"), ("blends", "blend"))
    words = [word for word, kind in kinds if facts.lines(kind)]
    return ", ".join(words) or "keeps all"


def scores(facts: Facts) -> str:
    return ", ".join(dict.fromkeys(observed_text(use) for use in facts.observed)) or "-"


def _formula(facts: Facts, what: str) -> str:
    found = []
    for formula in facts.rows:
        if formula.what == what:
            place = f"{formula.zone} {formula.part}: " if formula.zone else ""
            found.append(f"{place}`{formula.rows}`")
    return "; ".join(found)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
