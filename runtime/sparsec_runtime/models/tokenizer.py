"""Text to token ids and back: a model's own tokenizer, raw bytes for models that have none, and incremental decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tokenizers import pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .errors import ModelError
from .gguf import Scalar, read_header

Message = Mapping[str, str]  # {"role": ..., "content": ...}
REPLACEMENT = "\ufffd"  # what a decoder shows for bytes that are not UTF-8, or not yet


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    eos_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def stream(self) -> Stream: ...


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """A transformers tokenizer."""

    backend: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the special tokens that this model's tokenizer puts around it (none for SmolLM2)."""
        return list(self.backend(text, add_special_tokens=True)["input_ids"])

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation in the model's chat template, ending where the assistant begins to speak."""
        if not self.backend.chat_template:
            raise ModelError("this model has no chat template", "give the prompt as plain text")
        text = self.backend.apply_chat_template([dict(m) for m in messages], add_generation_prompt=True, tokenize=False)
        return list(self.backend(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return self.backend.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def stream(self) -> Stream:
        return Stream(self)


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """One token per byte, for dummy weights: ids above 255 read as <id>."""

    eos_ids: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant:")

    def decode(self, ids: Sequence[int]) -> str:
        parts = (bytes([token]) if token < 256 else f"<{token}>".encode() for token in ids)
        return b"".join(parts).decode("utf-8", errors="replace")

    def stream(self) -> Stream:
        return Stream(self)


@dataclass(slots=True)
class Stream:
    """Decodes ids one at a time. The pieces of `push`, then `flush`, concatenate to `decode` of all ids.

    Text that ends in replacement characters may still become a character, so it waits; a character has at most four bytes, so never for long.
    """

    tokenizer: Tokenizer
    _ids: list[int] = field(default_factory=list)  # the window that is decoded anew: settled context, then what waits
    _context: int = 0  # ids of the window whose text has been emitted in full
    _sent: int = 0  # characters of the window's text that have been emitted

    def push(self, token: int) -> str:
        """The text that `token` completes; it may be empty."""
        self._ids.append(token)
        text = self.tokenizer.decode(self._ids)
        piece = text[self._sent : max(self._sent, len(text) - self._unsettled(text))]
        self._sent += len(piece)
        if self._sent == len(text):
            self._slide()
        return piece

    def flush(self) -> str:
        """The rest, once no more ids come: bytes that never became a character read as replacement characters."""
        piece = self.tokenizer.decode(self._ids)[self._sent :]
        self._ids, self._context, self._sent = [], 0, 0
        return piece

    def _unsettled(self, text: str) -> int:
        """Characters at the end of `text` that later ids may change."""
        trailing = len(text) - len(text.rstrip(REPLACEMENT))
        waiting = len(self._ids) - self._context
        return min(trailing, 3) if waiting > 8 else trailing

    def _slide(self) -> None:
        """Keeps the last settled ids as context: some tokenizers treat the first token of a text differently."""
        self._ids = self._ids[self._context :]
        self._context = len(self._ids)
        self._sent = len(self.tokenizer.decode(self._ids))


def directory_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a local model directory."""
    return AutoTokenizer.from_pretrained(path, local_files_only=True)


def has_tokenizer(path: Path) -> bool:
    return any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json"))


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file, set right where the one that transformers builds from it departs from the metadata."""
    metadata = read_header(path).metadata
    backend = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    _name_special_tokens(backend, metadata)
    _begin_as_stated(backend, metadata)
    if metadata.get("tokenizer.ggml.pre") == "smollm":
        _split_digits(backend)
    return backend


def _name_special_tokens(backend: PreTrainedTokenizerBase, metadata: Mapping[str, Scalar]) -> None:
    """transformers 5.17 takes SmolLM2's end for its beginning; the metadata's ids decide."""
    for role in ("bos", "eos"):
        token = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if token is not None:
            setattr(backend, f"{role}_token", backend.convert_ids_to_tokens(token))


def _begin_as_stated(backend: PreTrainedTokenizerBase, metadata: Mapping[str, Scalar]) -> None:
    """Puts the bos token before text exactly where the metadata says so; where it says nothing, transformers decides."""
    wanted = metadata.get("tokenizer.ggml.add_bos_token")
    begins = backend("x")["input_ids"][:1] == [backend.bos_token_id]
    if wanted is None or backend.bos_token is None or wanted == begins:
        return
    bos, start = backend.bos_token, f"{backend.bos_token} " if wanted else ""
    special = [(bos, backend.bos_token_id)] if wanted else []
    backend.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start}$A", pair=f"{start}$A {start}$B:1", special_tokens=special
    )


def _split_digits(backend: PreTrainedTokenizerBase) -> None:
    """SmolLM splits numbers into digits *before* the GPT-2 pattern; transformers drops that step, and white space before a digit
    (the blank line before "1.") then falls into other tokens than the model was trained on."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])


def eos_ids_of(*candidates: int | Sequence[int] | None) -> tuple[int, ...]:
    """Every id that any of the given places (generation config, config, tokenizer) calls an end, in order, once each."""
    found: dict[int, None] = {}
    for candidate in candidates:
        ids = () if candidate is None else (candidate,) if isinstance(candidate, int) else candidate
        found.update(dict.fromkeys(int(token) for token in ids))
    return tuple(found)
