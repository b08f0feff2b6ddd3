"""Which methods that count positions anew have their keys turned as attention reads them, and that no other method's kernels know of it."""

from __future__ import annotations

import pytest

from sparsec.codegen.turned_keys import turns_keys
from sparsec.diagnostics import Source
from sparsec.dsl.source import shipped_methods
from sparsec.pipeline import Compilation

RANKS = "sparse 1\nmethod mine {\n  zone main {\n    decode K[t, h, c] = rope(K_raw[t, h, c], order(t))\n  }\n"
ENDS = "evict keep sink(4) | recent(20)"


def mine(*bindings: str) -> Compilation:
    return Compilation(Source("mine.sparse", RANKS + "".join(f"  on {binding}\n  }}\n" for binding in bindings) + "}\n"))


@pytest.mark.parametrize(
    ("bindings", "turned"),
    [
        ((), True),
        ((f"finish_step when len > 40 {{ {ENDS}",), False),
        ((f"end_of_prompt, finish_step when len > 40 {{ {ENDS}",), False),
        ((f"end_of_prompt when len > 40 {{ {ENDS}",), True),
        (("finish_step when len > 40 { evict keep every(2)",), True),
        ((f"finish_step when len > 40 {{ {ENDS}", "end_of_prompt when len > 40 { evict keep every(2)"), True),
        ((f"finish_step when len > 40 {{ {ENDS}", "end_of_prompt when len > 40 { evict keep sink(2) | recent(20)"), True),
    ],
)  # fmt: skip
def test_keys_are_turned_unless_all_that_ever_stays_are_the_first_and_the_newest_rows(bindings: tuple[str, ...], turned: bool) -> None:
    made = mine(*bindings)
    assert turns_keys(made.plan) == turned
    assert ("turns_keys=True" in made.manager) == turned == ("turn_ptr" in made.decode) != ("q_first" in made.decode)


def test_no_shipped_method_turns_keys_by_default() -> None:
    for name in shipped_methods():
        made = Compilation.load(name)
        assert "turns_keys" not in made.manager and "turn_ptr" not in (made.decode or ""), name
