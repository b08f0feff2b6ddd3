"""What may stand among the conditions that a proof is given: any condition, not numbers alone."""

import pytest

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.check import type_method
from sparsec.dsl.parser import parse
from sparsec.dsl.static import provably_leq

TEXT = """sparse 1
method test {{
  param how: choice in {{one, two}} = one
  param big: bool = true
  param n: tokens in 1.. = 8
  on finish_step when {condition} {{ evict keep recent(n) }}
}}
"""


@pytest.mark.parametrize("condition", ["how == one", "big == true", "how == two and len > n", "len > n and big == false"])
def test_a_comparison_of_choices_bounds_nothing_and_breaks_nothing(condition: str) -> None:
    source = Source("test.sparse", TEXT.format(condition=condition))
    ctx = type_method(parse(source), source)
    (hook,) = ctx.method.of(t.Hook)
    bounded = provably_leq(t.Ref(t.Ident("n")), t.Ref(t.Ident("len")), ctx, (hook.when,))
    assert bounded == ("len > n" in condition)
