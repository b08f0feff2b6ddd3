"""docs/language.md and the vocabulary say the same: its tables are made from `names.py`, its list of codes from the pinned texts.

`SPARSEC_UPDATE_PINNED=1 pytest tests/dsl/test_language_reference.py` writes the tables anew.
"""

import os
import re
from pathlib import Path

import pytest

from sparsec.dsl import names

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "language.md"
CODE_LINE = re.compile(r"^\| `([SW]\d{3})` \| (.+) \|$", re.M)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(text: str) -> str:
    return f"`{text}`"


def listed(words) -> str:
    return ", ".join(code(word) for word in words) or "-"


def indexed(name: str, letters: tuple[str, ...]) -> str:
    return code(f"{name}[{', '.join(letters)}]")


# ---- one table per part of the vocabulary --------------------------------------------------------


def letters() -> str:
    domains: dict[str, list[str]] = {}
    for letter, domain in names.LETTERS.items():
        domains.setdefault(domain, []).append(letter)
    rows = [(listed(found), domain, "the model" if domain in names.STATIC_DOMAINS else "the sequence") for domain, found in domains.items()]
    return table(("letters", "domain", "its size follows from"), rows)


def tensors() -> str:
    where = {"rows": "every hook", "step": "hooks of a layer", "scores": "after attention"}
    windows = frozenset().union(*(hook.window for hook in names.HOOKS.values()))
    rows = [(indexed(e.name, e.letters), e.doc, where[e.source] + (", windows" if e.name in windows else "")) for e in names.TENSORS.values()]
    return table(("tensor", "what it is", "where"), rows)


def facts() -> str:
    of = {True: "model", False: "sequence or step"}
    rows = [(code(e.name), e.unit or e.kind, of[e.model], e.doc) for e in names.FACTS.values()]
    return table(("fact", "unit", "of the", "what it is"), rows)


def units() -> str:
    return table(("unit", "what it counts"), [(code(name), doc) for name, doc in names.UNITS.items()])


def sets() -> str:
    named = [(code(e.name), listed(e.base) if e.base else "any", e.doc) for e in names.SETS.values()]
    built = [(code(shape(e)), listed(e.base), e.doc) for e in names.FUNCTIONS.values() if e.result == "set"]
    return table(("set", "members", "what it holds"), named + built)


def shape(entry: names.Function) -> str:
    args = ", ".join(f"{arg[:-1]}, ..." if arg.endswith("*") else arg for arg in entry.args)
    keywords = "".join(f"{', ' if args or n else ''}{word} =" for n, word in enumerate(entry.keywords))
    return f"{entry.name}({args}{keywords})"


def functions() -> str:
    rows = [(code(shape(e)), e.doc) for e in names.FUNCTIONS.values() if e.result != "set"]
    return table(("function", "what it gives"), rows)


def reductions() -> str:
    rows = []
    for entry in names.REDUCTIONS.values():
        least, most = entry.args
        keeps = "stays" if entry.keeps else "-"
        count = str(least) if least == most else f"{least} or {most}"
        keywords = ", ".join(code(word) + (" (required)" if word in entry.required else "") for word in entry.keywords)
        rows.append((code(entry.name), entry.doc, count, keeps, keywords or "-"))
    return table(("reduction", "what it gives", "arguments", "its index", "keywords"), rows)


def hooks() -> str:
    rows = []
    for entry in names.HOOKS.values():
        window = f"{listed(sorted(entry.window))} of `i in last(n)`" if entry.window else ""
        reads = ", ".join(code(name) for name in sorted(entry.reads))
        rows.append((code(entry.name), f"per {entry.per}, {' and '.join(entry.phases)}", entry.doc, reads or window or "-", ", ".join(sorted(entry.may))))
    return table(("hook", "fires", "when", "special reads", "may change"), rows)


def dtypes() -> str:
    rows = []
    for entry in names.DTYPES.values():
        parts = [*entry.args, *(f"{word} =" for word in entry.keywords)]
        spelled = f"{entry.name}({', '.join(parts)})" if parts else entry.name
        rows.append((code("set[t]" if entry.name == "set" else spelled), entry.doc, ", ".join(sorted(entry.uses))))
    return table(("dtype", "what it is", "of a"), rows)


def words() -> str:
    rows = [
        ("memory of a zone, `at`", listed(names.TIERS)),
        ("`invariant`", listed(names.INVARIANTS)),
        ("entries of `schedule`", ", ".join(f"{code(name)} ({kind})" for name, kind in names.SCHEDULE.items())),
        *((f"words for `{name}`", listed(known)) for name, known in names.WORDS.items()),
    ]
    return table(("where", "words"), rows)


TABLES = {
    part.__name__: part for part in (letters, tensors, facts, units, sets, functions, reductions, hooks, dtypes, words)
}


def marked(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- table: {name}, from sparsec/dsl/names.py -->\n)(.*?)(<!-- end -->\n)", re.S)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_reference_is_the_vocabulary(name):
    page = PAGE.read_text(encoding="utf-8")
    found = marked(name).search(page)
    assert found is not None, f"docs/language.md has no table {name}"
    if os.environ.get("SPARSEC_UPDATE_PINNED") == "1":
        PAGE.write_text(page[: found.start(2)] + TABLES[name]() + page[found.end(2) :], encoding="utf-8")
        return
    assert found.group(2) == TABLES[name]()


# ---- diagnostics -----------------------------------------------------------------------------------


def documented() -> list[str]:
    return [found[0] for found in CODE_LINE.findall(PAGE.read_text(encoding="utf-8"))]


def pinned() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "diagnostics").glob("*.txt"))
    return {found for text in texts for found in re.findall(r"^\w+\[([SW]\d{3})\]", text, re.M)}


def of_targets() -> set[str]:
    sources = (ROOT / "sparsec" / "codegen").rglob("*.py")
    return {found for path in sources for found in re.findall(r'"(S9\d\d)"', path.read_text(encoding="utf-8"))}


def test_every_pinned_diagnostic_has_its_line_in_the_reference_and_no_other():
    assert len(pinned()) > 60 and len(of_targets()) > 5
    assert sorted(documented()) == sorted(pinned() | of_targets())
