"""Ids that a decode graph has chosen and the host has not read yet: they feed the next step on the device, and are read while that one runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .request import Request, RequestOutput, Status


class PendingIds:
    """batch: the requests of the step, in the order of its rows; ids [row] are copied at once, since the next step overwrites them."""

    def __init__(self, batch: Sequence[Request], ids: Tensor) -> None:
        self._batch = tuple(batch)
        self._host = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=ids.is_cuda)
        self._host.copy_(ids, non_blocking=True)
        self._copied = torch.cuda.Event() if ids.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def feeds(self, requests: Sequence[Request]) -> bool:
        """Whether the next step has the same rows, so that its tokens need not come from the host."""
        return len(requests) == len(self._batch) and all(mine is other for mine, other in zip(self._batch, requests))

    @property
    def ends_one(self) -> bool:
        """Whether the ids are known to be the last of some request: its batch ends with them."""
        return any(len(request.generated) + 1 >= request.sampling.max_tokens for request in self._batch if request.status is Status.RUNNING)

    def read(self) -> Iterator[tuple[Request, int]]:
        """Waits for the copy. Requests that have ended since are passed over."""
        if self._copied is not None:
            self._copied.synchronize()
        for request, token in zip(self._batch, self._host.tolist()):
            if request.status is Status.RUNNING:
                yield request, token


def joined(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """Outputs of one request, oldest first, as one."""
    text = "".join(output.text for output in outputs)
    return replace(outputs[-1], text=text, token_ids=tuple(token for output in outputs for token in output.token_ids))
