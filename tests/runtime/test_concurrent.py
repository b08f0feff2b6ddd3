"""Eight concurrent requests on the real model give the ids that each gives alone. Slow: run with `-m slow`."""

from __future__ import annotations

import pytest
from engines import METHODS
from sparsec_runtime.engine import Engine
from sparsec_runtime.models.loading import load_model
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.sampler import SamplingParams

from sparsec.data.document import built_in
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

LENGTHS = (5, 40, 130, 333, 600, 901, 1200, 1500)
NEW = 48
TIE = 1e-4  # gap of the two best logits under which GEMM rounding may choose
BUDGETS = {"kivi": {}, "dense": {}}
pytestmark = [pytest.mark.slow, pytest.mark.model]


def budget_of(method: str) -> dict[str, object]:
    return BUDGETS.get(method, {"budget": 256})


def engine(method: str) -> Engine:
    model = load_model("smollm2-135m", dtype="float32")
    compilation = Compilation.load(method, params=budget_of(method), model=from_shape(model.shape))
    return Engine(load_manager(compilation), model, EngineOptions(chunk=256, memory_tokens=16384))


def run(made: Engine, prompts: list[list[int]], params: dict, every: int) -> list[list[tuple[int, float]]]:
    """Ids with the gap of the two best logits; a request joins every `every` steps."""
    sampling = SamplingParams(max_tokens=NEW, ignore_eos=True, logprobs=2)
    names, found = [], {}
    waiting = list(prompts)
    turn = 0
    while waiting or made.busy:
        if waiting and turn % every == 0:
            names.append(made.add_request(waiting.pop(0), sampling, params))
        turn += 1
        for output in made.step():
            pairs = [(entry.token_id, entry.top[0][1] - entry.top[1][1]) for entry in output.logprobs]
            found.setdefault(output.request_id, []).extend(pairs)
    return [found[name] for name in names]


@pytest.mark.parametrize("method", METHODS)
def test_eight_staggered_requests_give_what_each_gives_alone(method):
    made = engine(method)
    params = {name: value for name, value in budget_of(method).items()}
    text = made.model.tokenizer.encode(built_in().text)
    prompts = [text[start * 17 : start * 17 + length] for start, length in enumerate(LENGTHS)]
    together = run(made, prompts, params, every=2)
    ties = 0
    for prompt, mixed in zip(prompts, together):
        alone = run(made, [prompt], params, every=1)[0]
        assert len(mixed) == len(alone) == NEW
        differ = next((n for n, (a, b) in enumerate(zip(mixed, alone)) if a[0] != b[0]), None)
        if differ is not None:
            ties += 1
            assert alone[differ][1] < TIE, f"token {differ} of a prompt of {len(prompt)} differs with a gap of {alone[differ][1]}"
    assert ties <= 1
