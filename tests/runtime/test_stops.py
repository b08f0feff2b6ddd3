"""Stop strings and ids, and text that is held back while it may become a stop string."""

from __future__ import annotations

import pytest
from engines import add, drain, engine, ids_of, prompt
from sparsec_runtime.models.tokenizer import ByteTokenizer
from sparsec_runtime.request import FinishReason
from sparsec_runtime.sampler import SamplingParams
from sparsec_runtime.stops import StopWatch


def feed(text: str, **sampling) -> tuple[list[str], FinishReason | None]:
    """Pieces of text as a client sees them, and the reason of the end."""
    tokenizer = ByteTokenizer()
    watch = StopWatch(tokenizer.stream(), SamplingParams(**{"max_tokens": 100, **sampling}), tokenizer.eos_ids)
    pieces = []
    for token in tokenizer.encode(text):
        piece, reason = watch.push(token)
        pieces.append(piece)
        if reason is not None:
            return pieces, reason
    return pieces, None


def test_a_stop_string_ends_the_text_before_itself():
    pieces, reason = feed("one two END three", stop=("END",))
    assert "".join(pieces) == "one two "
    assert reason is FinishReason.STOP


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none():
    pieces, reason = feed("an EN an", stop=("END",))
    assert pieces[3] == "" and pieces[4] == "" and pieces[5] == "EN "
    assert "".join(pieces) == "an EN an" and reason is None


def test_the_earliest_of_several_stop_strings_counts():
    assert "".join(feed("abcdef", stop=("ef", "cd"))[0]) == "ab"


def test_a_request_that_runs_out_of_tokens_shows_what_was_held_back():
    pieces, reason = feed("abEN", stop=("END",), max_tokens=4)
    assert "".join(pieces) == "abEN"
    assert reason is FinishReason.LENGTH


def test_a_stop_id_ends_the_request_and_adds_no_text():
    stop = ByteTokenizer().encode("c")[-1]
    pieces, reason = feed("abcd", stop_ids=(stop,))
    assert "".join(pieces) == "ab"
    assert reason is FinishReason.STOP


@pytest.mark.parametrize("wanted", [0, 3])
def test_logprobs_come_with_every_token_and_name_the_best(wanted):
    made = engine("dense")
    name = add(made, prompt(20), 5, logprobs=wanted)
    outputs = drain(made)[name]
    entries = [entry for output in outputs for entry in output.logprobs]
    assert [entry.token_id for entry in entries] == ids_of(outputs)
    assert all(len(entry.top) == wanted and entry.logprob <= 0 for entry in entries)
    assert all(not entry.top or entry.top[0] == (entry.token_id, pytest.approx(entry.logprob)) for entry in entries)


def test_a_seeded_request_samples_the_same_whatever_its_batch_mates():
    def sampled(mates: int) -> list[int]:
        made = engine("dense")
        name = add(made, prompt(20), 8, temperature=1.0, seed=7)
        for n in range(mates):
            add(made, prompt(15 + n, seed=n), 8, temperature=0.7, seed=n)
        return ids_of(drain(made)[name])

    assert sampled(0) == sampled(3)
