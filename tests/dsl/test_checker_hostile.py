"""The checker on specs that no author would write: always diagnostics, never a crash, and soon; and fixes that fix."""

from __future__ import annotations

import random
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from sparsec.diagnostics import Source, SpecError
from sparsec.dsl import tree as t
from sparsec.dsl.check import analyse
from sparsec.dsl.names import REDUCTIONS
from sparsec.dsl.parser import parse

ROOT = Path(__file__).parents[2]
FILES = [parse(Source(path.name, path.read_text(encoding="utf-8"))) for path in sorted((ROOT / "methods").glob("*.sparse"))]
NODES = [node for file in FILES for node in t.walk(file)]
WRONG = sorted((ROOT / "tests/diagnostics").glob("S[123]*_*.sparse"))
KINDS = (t.Expr, t.Stmt, t.Item)


def kind(node: t.Node) -> type:
    return next((known for known in KINDS if isinstance(node, known)), type(node))


def transplanted(node: t.Node, old: t.Node, new: t.Node) -> t.Node:
    """The tree with one node replaced by another of its kind; where the grammar wants a reference, one stays."""
    if node is old:
        return new
    changed: dict[str, object] = {}
    for entry in fields(node):
        part = getattr(node, entry.name)
        if isinstance(part, t.Node):
            grafted = transplanted(part, old, new)
            changed[entry.name] = part if entry.name == "target" and not isinstance(grafted, t.Ref) else grafted
        elif isinstance(part, tuple):
            changed[entry.name] = tuple(transplanted(item, old, new) if isinstance(item, t.Node) else item for item in part)
    return replace(node, **changed)


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_specs_put_in_each_others_places_never_crash_the_checker(seed):
    rnd = random.Random(seed)
    source = Source("mixed.sparse", "")
    for _ in range(40):
        file = rnd.choice(FILES)
        for _ in range(rnd.randint(1, 3)):
            places = [node for node in t.walk(file) if not isinstance(node, t.SparseFile | t.Method)]
            old = rnd.choice(places)
            new = rnd.choice([node for node in NODES if kind(node) is kind(old)])
            if isinstance(old, t.Ident) and old.text in REDUCTIONS or isinstance(old, t.Store | t.Decode):
                continue
            file = transplanted(file, old, new)
        analyse(file, source)


def lines(pattern: str, count: int) -> str:
    return "\n".join(pattern.format(i=i, j=i - 1, k=i - 2) for i in range(2, count))


HOSTILE = {
    "many unknown names": "on finish_step {\n" + lines("let a{i} = nme{i} + bme{i}", 1200) + "}",
    "many names to compare with": lines("state nm{i}: f32 = 0", 1000) + "on finish_step {" + lines("let b{i} = mn{i}x", 1000) + "}",
    "ranges that depend on each other": "param q0: tokens in 1.. = 1\nparam q1: tokens in 1.. = 1\n"
    + lines("param q{i}: tokens in q{j}..q{k} = q{j} // 2 + q{k} // 3", 500),
    "a chain of lets": "on finish_step {\nlet a1 = len\n" + lines("let a{i} = max(a{j}, a{j} // 2 + 1) * a{j}", 900)
    + "\nevict keep recent(a899) then top[t](pos[t]) upto a898 }",
    "powers of powers": "param b: bits in {2, 4} = levels(levels(levels(8)))\nparam c: int in 1.. = round(exp(9999))",
}  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_spec_is_checked_within_seconds(body):
    source = Source("hostile.sparse", f"sparse 1\nmethod m {{\n{body}\n}}\n")
    try:
        file = parse(source)
    except SpecError:
        return
    begun = time.process_time()
    analyse(file, source)
    assert time.process_time() - begun < 5.0


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_fix_makes_its_diagnostic_go_away(path):
    text = path.read_text(encoding="utf-8")
    source = Source(path.name, text)
    for one in analyse(parse(source), source).errors:
        for fix in one.fixes:
            changed = Source(path.name, text[: fix.span.start] + fix.text + text[fix.span.end :])
            after = analyse(parse(changed), changed).errors
            assert not any(other.code == one.code and other.span.start == one.span.start for other in after)
