"""What the torch target cannot compile is a diagnostic at the construct, never wrong code."""

from __future__ import annotations

import pytest

from sparsec.diagnostics import Source, SpecError
from sparsec.pipeline import Compilation

KEEP_BY = "on end_of_prompt when len > budget { evict keep recent(1) then top[t](%s) upto budget }"
CASES = {
    "a zone in host memory": ("S912", 4, "zone main zone far at cpu\non finish_step { move oldest(max(0, rows(main) - budget), main) to far }"),
    "a weight": ("S914", 4, "weight W[c, d]: bf16 = gaussian(seed = 1)\n" + KEEP_BY % "sum[d](sum[c](K[t, h, c] * W[c, d]))"),
    "a state over layers": (
        "S902", 4,
        "state seen[l, t, h]: f32 = 0\non after_decode_attention { seen[l, t, h] = seen[l, t, h] + sum[i, g](probs[i, h, g, t]) }\n"
        + KEEP_BY % "seen[layer, t, h]",
    ),
    "an extra pass": (
        "S910", 5, "state seen[t, h]: f32 = 0\non probe_attention { seen[t, h] += sum[i, g](probs[i, h, g, t]) }\n" + KEEP_BY % "seen[t, h]",
    ),
    "scores of a chunk that are not reduced over i": (
        "S904", 5,
        "state seen[t, h]: f32 = 0\non after_prefill_attention { seen[t, h] += norm[i](max[g](probs[i, h, g, t])) }\n" + KEEP_BY % "seen[t, h]",
    ),
    "a value over rows that an eviction moved": (
        "S915", 8,
        "state seen[t, h]: f32 = 0\non finish_step when len > budget {\n  let worth[t, h] = sum[c](K[t, h, c])\n"
        "  evict keep recent(1) then top[t](worth[t, h]) upto budget\n  seen[t, h] = worth[t, h]\n}\n"
        "on end_of_prompt when len > budget { evict keep recent(1) then top[t](seen[t, h]) upto budget }",
    ),
}  # fmt: skip


def spec(body: str) -> Source:
    return Source("mine.sparse", "sparse 1\nmethod mine {\n  param budget: tokens in 1.. = 8\n" + body + "\n}\n")


def refused(body: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        Compilation(spec(body)).plan
    return caught.value


@pytest.mark.parametrize("case", CASES)
def test_a_construct_beyond_the_target_is_named_with_its_line_and_a_way_out(case: str) -> None:
    code, line, body = CASES[case]
    first = refused(body).diagnostics[0]
    assert (first.code, first.span.line) == (code, line), first
    assert first.help
