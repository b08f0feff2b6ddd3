"""One index letter replaced at one site by another letter in scope: nearly always an error.

Sites are declarations, binders, indices, `along`, `set[.]` and ensures, in every shipped spec and every draft that checks.
Mutants that are the same program up to renaming do not count. `python tests/dsl/test_index_mutations.py` lists survivors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.check import analyse, type_method
from sparsec.dsl.names import LETTERS, REDUCTIONS
from sparsec.dsl.parser import parse

ROOT = Path(__file__).parents[2]
SPECS = (*sorted((ROOT / "methods").glob("*.sparse")), *sorted((ROOT / "tests/drafts").glob("*.sparse")))
MIN_REJECTED = 0.97


@dataclass(frozen=True, slots=True)
class Mutant:
    spec: str
    line: int
    site: str  # the text of the line
    change: str  # such as "t -> s"


@dataclass(frozen=True, slots=True)
class Tally:
    rejected: int
    equivalent: int
    survivors: tuple[Mutant, ...]

    @property
    def share(self) -> float:
        return self.rejected / (self.rejected + len(self.survivors))


def letter_sites(file: t.SparseFile, letters: dict[str, str]) -> Iterator[t.Span]:
    """Spans of every letter, whatever stands there: an index, a binder, a declaration, a keyword's value."""
    for node in t.walk(file):
        if isinstance(node, t.Ref) and not node.indices and node.name.text in letters:
            yield node.name.span
        elif isinstance(node, t.Binder):
            yield node.letter.span
        elif isinstance(node, t.Weight):
            yield from (letter.span for letter in node.letters)
        elif isinstance(node, t.Domain):
            yield node.letter.span
        elif isinstance(node, t.Dtype) and node.letter is not None:
            yield node.letter.span


# ---- programs up to renaming -------------------------------------------------------------------


def canonical(node: object, letters: dict[str, str], env: dict[str, tuple] | None = None) -> object:
    """The tree with every bound letter replaced by its domain and the order in which it was bound."""
    env = {} if env is None else env
    if isinstance(node, t.Ident):
        return env.get(node.text, node.text)
    if isinstance(node, t.Ensure):
        env = {name: (domain, f"free {name}") for name, domain in letters.items()}
    elif isinstance(node, t.State | t.Summary | t.Store | t.Decode | t.Let | t.Assign):
        env = bind(env, letters, (index.name.text for index in node.target.indices if isinstance(index, t.Ref)))
    elif isinstance(node, t.Weight):
        env = bind(env, letters, (letter.text for letter in node.letters))
    elif isinstance(node, t.Reduce) and not REDUCTIONS[node.op.text].keeps:
        env = bind(env, letters, (binder.letter.text for binder in node.binders))
    elif isinstance(node, t.Dtype) and node.letter is not None:
        env = {node.letter.text: (letters[node.letter.text], "set")}
    if isinstance(node, t.Node):
        return (type(node).__name__, *(canonical(getattr(node, f.name), letters, env) for f in fields(node) if f.name != "span"))
    return tuple(canonical(part, letters, env) for part in node) if isinstance(node, tuple) else node


def bind(env: dict[str, tuple], letters: dict[str, str], names: Iterator[str]) -> dict[str, tuple]:
    bound = dict(env)
    for name in names:
        if name in letters:
            bound[name] = (letters[name], len(bound))
    return bound


# ---- mutation ----------------------------------------------------------------------------------


def with_letter(node: t.Node, at: t.Span, new: str) -> t.Node:
    """The tree with the letter at one place replaced; all else is shared."""
    if isinstance(node, t.Ident):
        return replace(node, text=new) if node.span == at else node
    if not isinstance(node, t.Method | t.SparseFile) and not (node.span.start <= at.start and at.end <= node.span.end):
        return node
    changed: dict[str, object] = {}
    for entry in fields(node):
        part = getattr(node, entry.name)
        if isinstance(part, t.Node):
            changed[entry.name] = with_letter(part, at, new)
        elif isinstance(part, tuple):
            changed[entry.name] = tuple(with_letter(item, at, new) if isinstance(item, t.Node) else item for item in part)
    return replace(node, **changed)


def is_rejected(file: t.SparseFile, source: Source) -> bool:
    return bool(type_method(file, source).errors or analyse(file, source).errors)


@lru_cache(maxsize=1)
def tally() -> Tally:
    rejected = equivalent = 0
    survivors: list[Mutant] = []
    for path in SPECS:
        source = Source(path.name, path.read_text(encoding="utf-8"))
        file = parse(source)
        ctx = analyse(file, source)
        if ctx.errors:
            continue
        original = canonical(file, ctx.letters)
        for span in sorted(set(letter_sites(file, ctx.letters)), key=lambda s: s.start):
            old = source.text[span.start : span.end]
            for new in ctx.letters:
                if new == old:
                    continue
                mutant = with_letter(file, span, new)
                if is_rejected(mutant, source):
                    rejected += 1
                elif canonical(mutant, ctx.letters) == original:
                    equivalent += 1
                else:
                    line = source.text.splitlines()[span.line - 1].strip()
                    survivors.append(Mutant(path.stem, span.line, line, f"column {span.column}: {old} -> {new}"))
    return Tally(rejected, equivalent, tuple(survivors))


def test_nearly_every_mutated_index_letter_is_an_error() -> None:
    found = tally()
    listed = "\n".join(f"{m.spec}:{m.line} {m.change}: {m.site}" for m in found.survivors)
    assert found.share >= MIN_REJECTED, f"{found.share:.2%} rejected; survivors:\n{listed}"


def test_the_mutation_count_covers_thousands_of_sites() -> None:
    assert tally().rejected > 3000


def test_renaming_a_bound_letter_everywhere_is_the_same_program() -> None:
    one = "sparse 1\nmethod m { on finish_step { evict keep top[t](sum[h](score[t, h]), 4) } state score[t, h]: f32 = 0 }"
    other = "sparse 1\nmethod m { on finish_step { evict keep top[s](sum[h](score[s, h]), 4) } state score[s, h]: f32 = 0 }"
    assert canonical(parse(Source("a", one)), LETTERS) == canonical(parse(Source("b", other)), LETTERS)


if __name__ == "__main__":
    result = tally()
    for survivor in result.survivors:
        print(f"{survivor.spec}:{survivor.line} {survivor.change}: {survivor.site}")
    print(f"{result.rejected} rejected, {result.equivalent} equivalent, {len(result.survivors)} survive: {result.share:.2%}")
