"""Engines over a tiny random model for every shipped method, with params small enough that things happen."""

from __future__ import annotations

from functools import lru_cache

import torch
from sparsec_runtime.engine import Engine
from sparsec_runtime.models.loading import LoadedModel, load_model
from sparsec_runtime.options import EngineOptions
from sparsec_runtime.request import RequestOutput
from sparsec_runtime.sampler import SamplingParams

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager


SMALL = {
    "dense": {},
    "streamingllm": {"budget": 24, "sinks": 2},
    "h2o": {"budget": 24, "interval": 5},
    "snapkv": {"budget": 24, "window": 8, "kernel": 3},
    "pyramidkv": {"budget": 24, "window": 8, "kernel": 3, "beta": 4},
    "ada_snapkv": {"budget": 24, "window": 8, "kernel": 3},
    "tova": {"budget": 24},
    "quest": {"budget": 24, "page_size": 4, "dense": 1, "min_pages": 2},
    "omnikv": {"budget": 16, "window": 8, "sinks": 2, "filters": "{0, 2}"},
    "kivi": {"block": 8, "residual": 16},
}
METHODS = tuple(SMALL)


@lru_cache(maxsize=4)
def tiny_model(name: str = "tiny-llama", dtype: str = "float32") -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(name, dtype=dtype, load_format="dummy", seed=3)


@lru_cache(maxsize=64)
def _compiled(method: str, static: tuple[tuple[str, object], ...], model: str) -> Compilation:
    return Compilation.load(method, params=dict(static), model=from_shape(tiny_model(model).shape))


def engine(method: str, model: str = "tiny-llama", params: dict | None = None, dtype: str = "float32", **options) -> Engine:
    """An engine of `method`; params default to the small ones above; dynamic ones become the engine's `defaults`."""
    chosen = SMALL[method] if params is None else params
    compilation = _compiled(method, tuple(sorted(chosen.items())), model)
    made = Engine(load_manager(compilation), tiny_model(model, dtype), EngineOptions(**{"chunk": 32, "memory_tokens": 4096, **options}))
    made.request_params = dict(compilation.dynamic_params)
    return made


def poison(made: Engine) -> None:
    """Every slot of every pool holds what no request wrote: numbers that are none, integers that fit no row."""
    for stream in made.manager.storage.streams.values():
        for array in (*stream.payload, *stream.attached):
            array.data.fill_(float("nan") if array.data.is_floating_point() else True if array.data.dtype == torch.bool else -7)


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 200, (length,), generator=generator).tolist()


def add(made: Engine, tokens: list[int], new: int, name: str | None = None, **sampling) -> str:
    return made.add_request(tokens, SamplingParams(max_tokens=new, ignore_eos=True, **sampling), made.request_params, name)


def drain(made: Engine) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {}
    while made.busy:
        for output in made.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def ids_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def ids_of_rows(made: Engine, lengths: tuple[int, ...], new: int, **sampling) -> dict[str, list[int]]:
    """Ids that the engine gives to prompts of these lengths, `new` of each, by the names of the rows."""
    for n, length in enumerate(lengths):
        add(made, prompt(length, seed=n), new, name=f"row {n}", **sampling)
    return {name: ids_of(outputs) for name, outputs in drain(made).items()}


def with_kernels(made: Engine, tokens: int = 128) -> Engine:
    """The engine, decoding by kernels on a CPU: in interpreter mode, which must be set before any kernel is defined."""
    from sparsec_runtime.gpu.graphs import DecodeGraphs

    made.graphs = DecodeGraphs(made.model, made.manager, pool_tokens=4096, tokens=tokens)
    return made


def run_alone(method: str, tokens: list[int], new: int, **kwargs) -> list[int]:
    made = engine(method, **kwargs)
    name = add(made, tokens, new)
    return ids_of(drain(made)[name])
