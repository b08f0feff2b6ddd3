"""Reads the header of a GGUF file: metadata and tensor names, without tensors, numpy or torch.

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. Arrays are skipped and only their lengths kept: shapes need no vocabulary.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import ModelError

Scalar = int | float | bool | str

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata` holds the scalars, `lengths` the number of elements of each array, `tensors` the tensor names."""

    metadata: dict[str, Scalar]
    lengths: dict[str, int]
    tensors: tuple[str, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))


def read_header(path: Path) -> GgufHeader:
    """The header of the GGUF file at `path`."""
    try:
        with open(path, "rb") as file:
            return _read(file, path)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ModelError(f"{path} is cut short or damaged: its GGUF header does not parse ({error})", "fetch the file again") from error


def config_of(header: GgufHeader) -> dict[str, object]:
    """The header's shape as a Hugging Face config dict, so that one function reads every shape."""
    arch = header.architecture
    config: dict[str, object] = {"model_type": arch, "dtype": "float32", "tie_word_embeddings": "output.weight" not in header.tensors}
    for key, name in _CONFIG_KEYS.items():
        value = header.metadata.get(f"{arch}.{key}")
        if value is not None:
            config[name] = value
    config.setdefault("vocab_size", header.lengths.get("tokenizer.ggml.tokens"))
    config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    return config


_CONFIG_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}


def _read(file: BinaryIO, path: Path) -> GgufHeader:
    if file.read(4) != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file (it does not begin with 'GGUF')")
    version, tensor_count, pair_count = _unpack(file, "IQQ")
    if version not in (2, 3):
        raise ModelError(f"{path} is GGUF version {version}; versions 2 and 3 are read")
    metadata: dict[str, Scalar] = {}
    lengths: dict[str, int] = {}
    for _ in range(pair_count):
        key = _string(file)
        (kind,) = _unpack(file, "I")
        if kind == _ARRAY:
            lengths[key] = _skip_array(file)
        else:
            metadata[key] = _scalar(file, kind)
    return GgufHeader(metadata, lengths, tuple(_tensor_name(file) for _ in range(tensor_count)))


def _unpack(file: BinaryIO, letters: str) -> tuple[Scalar, ...]:
    layout = "<" + letters
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    text = file.read(length)
    if len(text) != length:
        raise struct.error("a string runs past the end of the file")
    return text.decode("utf-8")


def _scalar(file: BinaryIO, kind: int) -> Scalar:
    if kind == _STRING:
        return _string(file)
    if kind not in _SCALARS:
        raise struct.error(f"unknown value type {kind}")
    return _unpack(file, _SCALARS[kind])[0]


def _skip_array(file: BinaryIO) -> int:
    kind, length = _unpack(file, "IQ")
    if kind == _STRING or kind == _ARRAY:
        for _ in range(length):
            _string(file) if kind == _STRING else _skip_array(file)
    else:
        file.seek(struct.calcsize("<" + _SCALARS[kind]) * length, 1)
    return length


def _tensor_name(file: BinaryIO) -> str:
    name = _string(file)
    (rank,) = _unpack(file, "I")
    file.seek(8 * rank + 4 + 8, 1)  # dimensions, type, offset
    return name
