"""A compiled method, a loaded model and an engine around them: what `sparsec run` and scripts use.

    from sparsec.session import open_engine
    engine = open_engine("my.sparse", model="smollm2-135m")
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from sparsec_runtime.engine import Engine
from sparsec_runtime.layout import LayoutError
from sparsec_runtime.models.errors import ModelError
from sparsec_runtime.models.loading import LoadedModel, load_model
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.params import ParamError
from sparsec_runtime.request import RequestError, Usage
from sparsec_runtime.sampler import SamplingParams

from sparsec.failures import CommandError
from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager


@dataclass(frozen=True, slots=True)
class Result:
    """One finished generation and what it cost."""

    method: str
    model: str
    params: dict[str, object]
    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    kv_bytes_dense: int
    device: str
    eager_because: str  # why decode steps are no CUDA graphs; "" where they are
    pages_free: int
    pages_total: int

    @property
    def prefill_rate(self) -> float:
        return self.usage.prompt_tokens / self.usage.prefill_seconds if self.usage.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        decoded = self.usage.new_tokens - 1  # the first token comes from the prompt's forward
        return decoded / self.usage.decode_seconds if self.usage.decode_seconds else 0.0


def open_engine(
    method: str,
    model: str | LoadedModel = "smollm2-135m",
    params: Mapping[str, object] | None = None,
    options: EngineOptions | None = None,
    dtype: str = "auto",
    device: str = "auto",
) -> Engine:
    """Compile `method` (a shipped name or a .sparse file; `params` sets its static params) and start an engine."""
    loaded = load_model(model, dtype=dtype, device=device) if isinstance(model, str) else model
    compilation = Compilation.load(method, params=dict(params or {}), model=from_shape(loaded.shape))
    return Engine(load_manager(compilation), loaded, options)


@dataclass(slots=True)
class Session:
    """One method on one model, sized for one request at a time."""

    compilation: Compilation
    model: LoadedModel
    chunk: int
    request_params: dict[str, object] = field(default_factory=dict)

    @classmethod
    def open(cls, args: argparse.Namespace, method: str, params: dict[str, str], model: LoadedModel | None = None) -> Self:
        try:
            loaded = model or load_model(args.model, dtype=args.dtype, device=args.device, load_format=args.load_format)
            compilation = Compilation.load(method, params=params, model=from_shape(loaded.shape))
        except ModelError as error:
            raise CommandError(str(error)) from error
        return cls(compilation, loaded, args.chunk, dict(compilation.dynamic_params))

    @property
    def param_names(self) -> tuple[str, ...]:
        return self.compilation.param_names

    def encode(self, text: str, raw: bool = False) -> list[int]:
        return self.model.tokenizer.encode(text) if raw else self.encode_chat([{"role": "user", "content": text}])

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.model.tokenizer.encode_chat(messages)

    def generate(self, ids: Sequence[int], sampling: SamplingParams, echo: bool, lead: str = "") -> Result:
        """Run one request to its end; with `echo`, text goes to standard output as it comes, behind `lead`."""
        method = load_manager(self.compilation)
        try:
            options = EngineOptions(chunk=self.chunk, max_running=1, memory_tokens=len(ids) + sampling.max_tokens + 4 * self.chunk)
            _note("preparing kernels and graphs (compiled once a machine)" if self.model.device.type == "cuda" else None)
            engine = Engine(method, self.model, options)
            name = engine.add_request(ids, sampling, self.request_params)
        except (RequestError, ParamError, LayoutError) as error:
            raise CommandError(str(error), exit_code=2) from error
        params = engine.params_of(name)
        text, tokens, last, pages = "", [], None, engine.stats().pages
        while engine.busy:
            pages = engine.stats().pages  # before the last step, which frees them
            _progress(engine, name, len(ids))
            for last in engine.step():
                _note("" if not tokens else None)  # nothing may stand where the text begins
                text, tokens = text + last.text, tokens + list(last.token_ids)
                if echo:
                    print(lead + last.text, end="", flush=True)
                    lead = ""
        if echo:
            print(lead, flush=True)
        if last is None or last.error is not None:
            raise CommandError(f"the request failed: {last.error if last else 'no output'}")
        return Result(
            self.compilation.name, self.model.shape.name, params, text, tuple(tokens), last.usage,
            self._dense_bytes(len(ids) + len(tokens) - 1), self.model.device.type, engine.eager_because, pages.free, pages.total,
        )  # fmt: skip

    def _dense_bytes(self, tokens: int) -> int:
        """What dense would hold for the same tokens, in whole pages of this method's size."""
        page = self.compilation.page_size
        return -(-tokens // page) * page * from_shape(self.model.shape).kv_bytes_per_token


def _note(text: str | None) -> None:
    """A line that the next one overwrites; nothing without a text, or when standard error is not a terminal."""
    if text is not None and sys.stderr.isatty():
        print("\r" + text.ljust(64) + "\r", end="", file=sys.stderr, flush=True)


def _progress(engine: Engine, name: str, total: int) -> None:
    """A line that overwrites itself while a long prompt is read; nothing when standard error is not a terminal."""
    done = engine.progress(name)
    _note(f"reading the prompt: {done}/{total} tokens" if total > 1024 and done < total else None)
