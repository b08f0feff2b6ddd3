"""The built-in document on the real model: who finds the hidden fact, and who does not.

Measured while choosing it (greedy, fp32, budget 26 % of the prompt): of the facts that dense attention finds, H2O with recent = budget / 2 finds
about half; facts of one common word (a colour, an animal, a country) are found, rare names are not. The three further facts below are of the
first kind, at other places; two of three is the rate that is asked of them.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
from sparsec_runtime.engine import Engine
from sparsec_runtime.models.loading import LoadedModel, load_model
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.sampler import SamplingParams

from sparsec.data.document import Document, built_in
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

pytestmark = pytest.mark.model

FURTHER = (
    built_in("The potter of the ropewalk comes from Norway.", "From which country does the potter of the ropewalk come?", "Norway", 6),
    built_in("The mayor of Ellery keeps a parrot.", "Which animal does the mayor of Ellery keep?", "parrot", 10),
    built_in("The choir of Ellery always sings in Latin.", "In which language does the choir of Ellery always sing?", "Latin", 15),
)


@lru_cache(maxsize=1)
def model() -> LoadedModel:
    return load_model("smollm2-135m", dtype="float32")


def answer(method: str, text: str, params: dict[str, object]) -> tuple[str, object]:
    compilation = Compilation.load(method, model=from_shape(model().shape))
    engine = Engine(load_manager(compilation), model(), EngineOptions(memory_tokens=4096, max_running=1))
    tokens = model().tokenizer.encode_chat([{"role": "user", "content": text}])
    outputs = list(engine.generate([tokens], SamplingParams(max_tokens=20), params))
    return "".join(output.text for output in outputs), outputs[-1].usage


def finds(method: str, document: Document, params: dict[str, object]) -> bool:
    return document.answer in answer(method, document.prompt, params)[0]


def test_the_document_has_its_fact_in_the_first_half_and_two_to_three_thousand_tokens():
    document = built_in()
    tokens = model().tokenizer.encode(document.text)
    assert 2000 <= len(tokens) <= 3000
    assert 0.1 < document.place < 0.5


def test_a_quarter_of_the_cache_still_names_the_fact():
    text, usage = answer("h2o", built_in().prompt, {"budget": "25%"})
    dense_text, dense = answer("dense", built_in().prompt, {})
    assert built_in().answer in dense_text
    assert built_in().answer in text
    assert usage.kv_bytes <= 0.27 * dense.kv_bytes


def test_a_window_of_the_same_size_does_not_know_the_fact():
    assert not finds("streamingllm", built_in(), {"budget": "25%"})


def test_dense_attention_does_not_know_the_fact_without_the_document():
    assert built_in().answer not in answer("dense", built_in().question, {})[0]


def test_two_of_three_further_facts_are_found_at_a_quarter():
    assert sum(finds("h2o", document, {"budget": "25%"}) for document in FURTHER) >= 2
