"""Whatever the bytes are: a checked method or diagnostics, soon, and never another exception."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsec.diagnostics import Source, SpecError
from sparsec.dsl.check import check
from sparsec.dsl.format import format_text
from sparsec.dsl.limits import MAX_CHARACTERS, MAX_DEPTH
from sparsec.dsl.parser import parse
from sparsec.dsl.source import decode_source
from sparsec.render import render_all, to_json

HEAD = "sparse 1\nmethod m {\n  on finish_step {\n"
SECONDS_PER_100_KB = 8.0  # a guard against hangs and quadratic growth; the promise, one second on an idle core, is no test of a loaded machine
FLOOR = 8.0


def codes(content: bytes) -> set[str]:
    """Read, parse, check and render as `sparsec check` does."""
    try:
        source = decode_source("hostile.sparse", content)
        found = check(parse(source), source).warnings
    except SpecError as error:
        source, found = error.source, error.diagnostics
        assert found
    for one in found[:50]:
        to_json(one, source).encode("ascii")
    render_all(found[:50], source).encode("utf-8")
    return {one.code for one in found}


def in_hook(text: str) -> str:
    return f"{HEAD}{text}\n  }}\n}}\n"


def let(value: str) -> str:
    return in_hook(f"let deep = {value}")


HOSTILE = {
    "nothing": "",
    "blanks": " \n\t" * 30_000,
    "nul bytes": "\0" * 100_000,
    "nul in a name": let("a\0b"),
    "one letter a megabyte long": "x" * 1_000_000,
    "a megabyte of statements": in_hook("let deep = len\n" * 80_000),
    "many statements": in_hook("let deep = len\n" * 5_000),
    "many hooks": "sparse 1 method m {" + "on finish_step { }\n" * 3_000 + "}",
    "many states": "sparse 1 method m {" + "".join(f"state s{i}[t, h]: f32 = 0\n" for i in range(2_000)) + "}",
    "many unknown names": in_hook("".join(f"let x{i} = budgat{i}\n" for i in range(2_000))),
    "many choices and unknown names": "sparse 1 method m {" + "".join(f"param c{i}: choice in {{a{i}, b{i}}} = a{i}\n" for i in range(700))
    + "on finish_step {" + "".join(f"let x{i} = where(q == a{i}, 1, 2)\n" for i in range(800)) + "}}",
    "params in a chain": "sparse 1 method m { param p0: tokens in 1.. = 1\n"
    + "".join(f"param p{i + 1}: tokens in p{i}..p{i} * 2 + 1 = p{i}\n" for i in range(1_100)) + "}",
    "many shared states": "sparse 1 method m {" + "".join(
        f"state s{i}: f32 = 0 shared\non after_decode_attention for layer == {i} {{ s{i} = 1 }}\n"
        f"on build_decode_selection when s{i} > 0 {{ attend all }}\n" for i in range(400)) + "}",
    "many attends": "sparse 1 method m { param b: tokens in 8.. = 8\n" + "".join(
        f"on build_decode_selection for layer == {i} {{ attend recent(1) then top[t](max[h, c](K[t, h, c])) upto b }}\n" for i in range(500)) + "}",
    "many sums": "sparse 1 method m { on after_decode_attention {\n"
    + "".join(f"let x{i}[t, h] = sum[i, g](probs[i, h, g, t])\n" for i in range(1_200)) + "}}",
    "parentheses": let("(" * 30_000 + "1" + ")" * 30_000),
    "open parentheses": let("(" * 60_000),
    "closing parentheses": let(")" * 60_000),
    "braces": "{" * 60_000,
    "closing braces": "sparse 1 method m {" + "}" * 60_000,
    "sets in sets": let("{" * 30_000 + "1" + "}" * 30_000),
    "indices in indices": let("a[" * 20_000 + "1" + "]" * 20_000),
    "calls in calls": let("max(" * 10_000 + "1" + ")" * 10_000),
    "reductions in reductions": let("sum[t](" * 8_000 + "1" + ")" * 8_000),
    "branches in branches": in_hook("when decoding { " * 3_000 + "}" * 3_000),
    "branches that stay open": in_hook("when decoding { " * 4_000),
    "minus signs": let("-" * 60_000 + "1"),
    "nots": let("not " * 15_000 + "decoding"),
    "a long sum": let("len + " * 10_000 + "1"),
    "a sum of 100,000 terms": let("len + " * 100_000 + "1"),
    "a long conjunction": let("decoding and " * 4_000 + "decoding"),
    "implications": let("a implies " * 6_000 + "a"),
    "comparisons": let("a < " * 15_000 + "a"),
    "a large set": let("{" + "1, " * 20_000 + "1}"),
    "a large call": let("max(" + "1, " * 20_000 + "1)"),
    "many rankings": in_hook("evict keep all" + " then all" * 6_000),
    "a number of 100,000 digits": let("9" * 60_000),
    "a large float": let("1.0e999999"),
    "a tiny float": let("1.0e-99999"),
    "a huge count": in_hook("evict keep recent(999999999999999999)"),
    "a huge product": let("999999999999999999 * " * 40 + "1"),
    "a division by zero": "sparse 1 method m { param a: tokens in 1..1 // 0 = 1 // 0 }",
    "a huge version": "sparse " + "9" * 60_000,
    "a long name": f"sparse 1 method {'m' * 60_000} {{ }}",
    "a long text": f'sparse 1 method m "{"d" * 60_000}" {{ }}',
    "an open text": 'sparse 1 method m "' + "d" * 60_000,
    "quotes": '"' * 60_000,
    "comments": "#" * 60_000,
    "many comments": "# a\n" * 15_000,
    "hash and quote": '#"' * 30_000,
    "carriage returns": "sparse 1\rmethod m {\r}\r" + "\r" * 50_000,
    "other digits": "sparse \u0661 method m { layers x = \u0663.\u0663 }",
    "other spaces": "sparse\u00a01\u2003method m { }",
    "surrogates as text": "sparse 1 method m { # \\ud800\n}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_ends_soon_and_without_another_exception(text):
    content = text.encode()
    start = time.process_time()
    codes(content)
    assert time.process_time() - start < max(FLOOR, len(content) / 100_000 * SECONDS_PER_100_KB)


@pytest.mark.parametrize("seed", range(5))
def test_binary_garbage_is_refused_as_no_text(seed):
    assert codes(random.Random(seed).randbytes(50_000)) == {"S004"}


def test_a_lone_surrogate_in_a_string_from_python_is_a_diagnostic():
    with pytest.raises(SpecError, match="S004"):
        parse(Source("x", "sparse 1 method m { # \ud800\n}"))


def test_a_file_above_the_limit_is_refused_before_it_is_parsed():
    assert codes(b"sparse 1 method m { }" + b" " * MAX_CHARACTERS) == {"S008"}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(list("{}[]()=+-*/<>|&,:.#\"\n 1x") + [" when ", " on ", " let ", " evict keep ", " sum[t](", " method ", "sparse 1 "]), max_size=60).map("".join))
def test_any_run_of_pieces_ends_in_a_tree_or_a_diagnostic(text):
    codes(text.encode())
    codes(f"sparse 1 method m {{ on finish_step {{ {text} }} }}".encode())


DEEPEST = {
    "sum": lambda depth: "len + " * depth + "1",
    "right sum": lambda depth: "1 - (" * depth + "len" + ")" * depth,
    "minus": lambda depth: "-" * depth + "len",
    "not": lambda depth: "not " * depth + "decoding",
    "max": lambda depth: "max(1, " * depth + "len" + ")" * depth,
    "where": lambda depth: "where(decoding, 1, " * depth + "len" + ")" * depth,
    "union": lambda depth: "recent(1) | " * depth + "recent(2)",
    "and": lambda depth: "decoding and " * depth + "decoding",
}


@pytest.mark.parametrize("value", DEEPEST.values(), ids=DEEPEST.keys())
def test_the_deepest_tree_that_is_accepted_passes_every_later_stage(value):
    text = in_hook(f"let deep = {value(_deepest(value))}\n let other = deep\n evict keep recent(4)")
    file = parse(Source("x", text))
    assert file == parse(Source("y", text))
    assert hash(file) == hash(parse(Source("y", text)))
    assert len(repr(file)) > MAX_DEPTH
    assert parse(Source("z", format_text(text))) == file
    codes(text.encode())


def _deepest(value) -> int:
    """The greatest depth at which the value still parses."""
    accepted = [depth for depth in range(1, MAX_DEPTH + 1) if _parses(in_hook(f"let deep = {value(depth)}"))]
    assert accepted, "not even one level parses"
    return accepted[-1]


def _parses(text: str) -> bool:
    try:
        parse(Source("x", text))
    except SpecError as error:
        assert {one.code for one in error.diagnostics} == {"S002"}
        return False
    return True
