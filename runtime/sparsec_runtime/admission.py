"""Who may enter, and how many pages wait for each: what can never be served is refused with numbers, the rest reserves its derived peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsec_runtime.cache import CacheManager
from sparsec_runtime.memory import OutOfPages
from sparsec_runtime.models.loading import LoadedModel
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.request import Request, RequestError
from sparsec_runtime.sampler import SamplingParams


class Admission:
    """Of one engine; keeps nothing of the requests that it has seen."""

    def __init__(self, model: LoadedModel, manager: CacheManager, options: EngineOptions) -> None:
        self._model, self._manager, self._options = model, manager, options

    def request(self, name: str, ids: tuple[int, ...], sampling: SamplingParams, params: Mapping[str, object]) -> Request:
        """A request with its params resolved and its pages reserved. Raises RequestError or ValueError (a ParamError is one) if it can never be served."""
        self._refuse_impossible(ids, sampling)
        resolved = self._manager.resolve_params(params, prompt_tokens=len(ids))
        request = Request(name, ids, sampling, resolved)
        self.reserve(request)
        total = self._manager.pages().total
        if request.reserved > total:
            raise RequestError(
                f"the request needs {request.reserved} pages at its peak and the engine has {total}: raise memory_tokens "
                f"(now {self._options.memory_tokens}), or shorten the prompt or max_tokens"
            )
        return request

    def reserve(self, request: Request) -> None:
        """Pages at the derived peak: the prompt, and as many new tokens as the options reserve."""
        new = request.sampling.max_tokens
        if self._options.reserve_tokens is not None:
            new = min(new, max(self._options.reserve_tokens, len(request.generated) + 1))
        request.reserved = self._manager.page_need(len(request.prompt), new, self._options.chunk, request.params)

    def free(self, running: Sequence[Request]) -> int:
        """Pages that no running request has reserved."""
        return self._manager.pages().total - sum(request.reserved for request in running)

    def outgrown(self, shortage: OutOfPages) -> str:
        """What a request is told that got in with less than all of its tokens reserved, and then did not fit alone."""
        return f"the request outgrew the engine's pages ({shortage}): raise memory_tokens (now {self._options.memory_tokens}), or lower max_tokens"

    def _refuse_impossible(self, ids: tuple[int, ...], sampling: SamplingParams) -> None:
        if not ids:
            raise RequestError("the prompt has no tokens: give at least one")
        vocab = self._model.shape.vocab
        wrong = next((token for token in ids if not 0 <= token < vocab), None)
        if wrong is not None:
            raise RequestError(f"token id {wrong} is out of range: the model has ids 0 to {vocab - 1}")
        sampling.check_vocab(vocab)
        longest = len(ids) + sampling.max_tokens
        if self._manager.LAYOUT.position == "logical" and longest > self._model.shape.max_positions:
            raise RequestError(
                f"{len(ids)} prompt tokens and {sampling.max_tokens} new ones make {longest}; "
                f"the model has {self._model.shape.max_positions} positions: shorten the prompt or max_tokens"
            )
