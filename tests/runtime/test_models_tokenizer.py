"""Tokenizers: facts about the built-in one, bytes for dummy models, and streams that never break a character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from sparsec_runtime.models import tokenizer
from sparsec_runtime.models.tokenizer import REPLACEMENT, ByteTokenizer, Stream, eos_ids_of

TEXTS = ["", "Hello world", "  two  spaces 123456\n\tx", "héllo 你好 🙂 👩‍👩‍👧", "I'm don't", "a\n\n1. x   12 y"]


@pytest.fixture(scope="module")
def smollm():
    from sparsec_runtime.models.loading import load_model

    return load_model("smollm2-135m").tokenizer


def streamed(of, ids: list[int]) -> list[str]:
    stream = of.stream()
    return [*(stream.push(token) for token in ids), stream.flush()]


@given(st.text())
def test_bytes_round_trip(text: str) -> None:
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text


@given(st.lists(st.integers(0, 300), max_size=60))
def test_streamed_bytes_concatenate_to_the_decoded_text(ids: list[int]) -> None:
    assert "".join(streamed(ByteTokenizer(), ids)) == ByteTokenizer().decode(ids)


@given(st.text())
def test_a_stream_of_valid_text_never_shows_a_broken_character(text: str) -> None:
    pieces = streamed(ByteTokenizer(), ByteTokenizer().encode(text))
    assert "".join(pieces) == text
    assert text.count(REPLACEMENT) == sum(piece.count(REPLACEMENT) for piece in pieces)


def test_endless_invalid_bytes_do_not_wait_forever() -> None:
    stream = ByteTokenizer().stream()
    assert sum(len(stream.push(0x80)) for _ in range(100)) >= 90
    assert len(stream._ids) <= 100


def test_a_conversation_of_bytes_ends_where_the_assistant_speaks() -> None:
    ids = ByteTokenizer().encode_chat([{"role": "user", "content": "Hi"}])
    assert bytes(ids) == b"user: Hi\nassistant:"


def test_eos_ids_are_gathered_once_each() -> None:
    assert eos_ids_of([128001, 128009], 128009, None, 2) == (128001, 128009, 2)


@pytest.mark.model
def test_smollm_stops_at_two_and_puts_no_token_before_text(smollm) -> None:
    assert smollm.eos_ids == (2,)
    assert smollm.encode("Hello world") == [19556, 905]
    assert smollm.encode("<|im_start|>user\nHi<|im_end|>\n") == [1, 4093, 198, 26843, 2, 198]


def _toy_backend() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "x": 2}, unk_token="x"))
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="</s>", eos_token="</s>")


@pytest.mark.parametrize(("stated", "ids"), [(True, [0, 2]), (False, [2]), (None, [2])])
def test_metadata_decides_special_tokens_and_whether_text_begins_with_one(stated: bool | None, ids: list[int]) -> None:
    metadata = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    metadata |= {} if stated is None else {"tokenizer.ggml.add_bos_token": stated}
    backend = _toy_backend()
    for _ in range(2):  # the second time finds everything right
        tokenizer._name_special_tokens(backend, metadata)
        tokenizer._begin_as_stated(backend, metadata)
    assert (backend.bos_token, backend.eos_token) == ("<s>", "</s>")
    assert backend("x")["input_ids"] == ids


def test_a_beginning_that_the_metadata_denies_is_dropped() -> None:
    backend = _toy_backend()
    metadata = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_bos_token": True}
    for stated, ids in ((True, [0, 2]), (False, [2])):
        tokenizer._name_special_tokens(backend, metadata)
        tokenizer._begin_as_stated(backend, metadata | {"tokenizer.ggml.add_bos_token": stated})
        assert backend("x")["input_ids"] == ids


@pytest.mark.model
def test_smollm_splits_digits_before_words(smollm) -> None:
    words = smollm.backend.convert_ids_to_tokens(smollm.encode("a\n\n1. x   12 y"))
    assert words == ["a", "ĊĊ", "1", ".", "Ġx", "ĠĠĠ", "1", "2", "Ġy"]


@pytest.mark.model
def test_smollm_chat_begins_once_and_ends_where_the_assistant_speaks(smollm) -> None:
    ids = smollm.encode_chat([{"role": "user", "content": "Hi"}])
    assert ids[:3] == [1, 9690, 198] and ids.count(1) == 3 and ids.count(2) == 2
    assert smollm.backend.decode(ids).endswith("<|im_start|>assistant\n")


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_smollm_streams_what_it_decodes(smollm, text: str) -> None:
    ids = smollm.encode(text)
    pieces = streamed(smollm, ids)
    assert "".join(pieces) == smollm.decode(ids) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.model
@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.integers(0, 400) | st.integers(0, 49151), max_size=40))
def test_smollm_streams_any_ids_as_it_decodes_them(smollm, ids: list[int]) -> None:
    assert "".join(streamed(smollm, ids)) == smollm.decode(ids)


def test_streams_are_independent() -> None:
    first, second = Stream(ByteTokenizer()), Stream(ByteTokenizer())
    assert first.push(0xC3) == "" and second.push(ord("x")) == "x" and first.push(0xA9) == "é"
