"""Where the tensors of a captured graph lay: a graph reads addresses, not tensors, so one that moved is read where it no longer is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from ..models.loading import LoadedModel
from ..storage import Storage
from .buffers import DecodeBuffers


class MovedTensor(AssertionError):
    """A tensor that a graph captured lies elsewhere now; the message names it."""


@dataclass(frozen=True, slots=True)
class CapturedAddresses:
    addresses: dict[str, int]

    @classmethod
    def of(cls, model: LoadedModel, storage: Storage, buffers: DecodeBuffers) -> Self:
        return cls({name: tensor.data_ptr() for name, tensor in _tensors(model, storage, buffers)})

    def check(self, model: LoadedModel, storage: Storage, buffers: DecodeBuffers) -> None:
        """Raises MovedTensor for the first tensor that is not where it was."""
        now = self.of(model, storage, buffers).addresses
        for name, address in self.addresses.items():
            if now.get(name) != address:
                raise MovedTensor(f"{name} has moved since a decode graph captured it: weights, pools and buffers must stay where they are")


def _tensors(model: LoadedModel, storage: Storage, buffers: DecodeBuffers) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.module.named_parameters():
        yield f"weight {name}", weight
    for name, stream in storage.streams.items():
        for number, array in enumerate((*stream.payload, *stream.attached)):
            yield f"array {number} of pool {name}", array.data
    yield "the frequencies of RoPE", storage.rope.inv_freq
    for owner in (buffers, buffers.sampling):
        for name, value in vars(owner).items() if owner is not None else ():
            for part, tensor in value.items() if isinstance(value, dict) else (("", value),):
                if isinstance(tensor, Tensor):
                    yield f"buffer {name} {part}".rstrip(), tensor
