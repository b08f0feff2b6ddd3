"""rows_after, the host's arithmetic, counts what hooks do to the stored rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import HEADS, METHODS, PARAMS, arguments, tensors
from sparsec_runtime.layout import PARTS, Counts

from sparsec.dsl.source import load_source
from sparsec.pipeline import Compilation, load_manager
from sparsec.replay import ReplayRequest, model_facts, replay
from sparsec_runtime.rope import Rope

PROMPT, NEW, CHUNK = 50, 9, 17
SPECS = Path(__file__).parent / "specs"


def counted(method: str, given: dict[str, object]) -> list[list[Counts]]:
    """[step][layer]: after the prompt and after every decode step, on the host alone."""
    request = ReplayRequest(**tensors(PROMPT + NEW, 1), prompt_len=PROMPT, chunk=CHUNK, q_start=0, rotated=False, rope=Rope.plain(1e4, 16), record=())
    compilation = Compilation(load_source(method), given, model_facts(request))
    facts = model_facts(request)
    kind = load_manager(compilation)
    manager = object.__new__(kind)
    manager.model_facts = facts
    params = manager.resolve_params(compilation.dynamic_params)
    zones = [zone.name for zone in kind.LAYOUT.zones]
    layers = [Counts(0, {(zone, part): 0 for zone in zones for part in PARTS}, 0, 0, False) for _ in range(request.layers)]
    steps, done = [], 0
    while done < PROMPT + NEW:
        new = min(CHUNK, PROMPT - done) if done < PROMPT else 1
        phase, done = ("prefill" if done < PROMPT else "decode"), done + new
        layers = [_after(manager, counts, zones[0], new, phase, done, layer, params, facts) for layer, counts in enumerate(layers)]
        if done >= PROMPT:
            steps.append(layers)
    return steps


def _after(manager, counts: Counts, newest: str, new: int, phase: str, done: int, layer: int, params, facts) -> Counts:
    rows = {place: count + (new if place[0] == newest else 0) for place, count in counts.rows.items()}
    counts = Counts(counts.length + new, rows, counts.prompt_rows, max(0, done - PROMPT), done >= PROMPT)
    for hook in ("end_of_prompt", "finish_step") if phase == "prefill" and done == PROMPT else ("finish_step",):
        counts = manager.rows_after(hook, phase, counts, layer, params, facts)
    return counts


@pytest.mark.parametrize("method", METHODS)
def test_the_host_counts_the_rows_that_are_kept(method: str) -> None:
    trace = replay(method, target="torch", prompt_len=PROMPT, chunk=CHUNK, **tensors(PROMPT + NEW, 1), **arguments(method))
    for step, (layers, kept) in enumerate(zip(counted(method, PARAMS[method]), trace.kept, strict=True)):
        for layer, (counts, heads) in enumerate(zip(layers, kept, strict=True)):
            rows = sum(len(head) for head in heads)
            assert counts.length == -(-rows // HEADS), f"step {step}, layer {layer}: {counts.length} counted, {rows / HEADS} held"


@pytest.mark.parametrize(
    ("spec", "params", "zone"), [("kivi", {}, "packed"), ("kivi", {"flush": "blocks"}, "packed"), (str(SPECS / "pair_of_zones.sparse"), {}, "coded")]
)
def test_the_host_counts_the_rows_of_each_zone_and_part(spec: str, params: dict[str, object], zone: str) -> None:
    params = {**PARAMS.get(spec, {}), **params}
    name = f"{zone}.rows"
    trace = replay(spec, target="torch", params=params, prompt_len=PROMPT, chunk=CHUNK, record=(name,), **tensors(PROMPT + NEW, 1))
    for layers, recorded in zip(counted(spec, params), trace.recorded[name], strict=True):
        assert [layers[0].rows[zone, part] for part in PARTS] == recorded[0].values.tolist()
