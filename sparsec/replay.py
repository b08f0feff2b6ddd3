"""Runs a method on recorded Q, K and V without a model, on any target, and returns a Trace.

`ReplayRequest` holds validated inputs; the targets see nothing else. The tokens from `prompt_len` on are teacher-forced, one per decode step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TypedDict

import torch
from torch import Tensor

from sparsec.diagnostics import Source
from sparsec.dsl.check import check
from sparsec.dsl.checked import Checked
from sparsec.dsl.params import Given, ParamError, ParamTable, Value
from sparsec.dsl.parser import parse
from sparsec.dsl.source import load_source
from sparsec.trace import Recorded, Trace
from sparsec_runtime.rope import Rope, Style

TARGETS = ("reference", "torch", "triton")


class ReplayError(ValueError):
    """An argument of `replay` cannot be used; the text names it and says what is legal."""


class RopeSpec(TypedDict, total=False):
    """theta, style ("half-split" or "interleaved") and dim (rotated channels; all if absent)."""

    theta: float
    style: Style
    dim: int


@dataclass(frozen=True, slots=True, eq=False)
class ReplayRequest:
    """q [layer, token from q_start, q_head, channel]; k, v [layer, token, kv_head, channel]; all in the payload's dtype."""

    q: Tensor
    k: Tensor
    v: Tensor
    prompt_len: int
    chunk: int | None
    q_start: int
    rotated: bool
    rope: Rope | None
    record: tuple[str, ...]

    @property
    def layers(self) -> int:
        return self.k.shape[0]

    @property
    def tokens(self) -> int:
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[2]

    @property
    def group(self) -> int:
        return self.q.shape[2] // self.kv_heads

    @property
    def head_dim(self) -> int:
        return self.k.shape[3]

    @property
    def decode_steps(self) -> int:
        return self.tokens - self.prompt_len

    @property
    def dtype(self) -> torch.dtype:
        return self.k.dtype


def replay(
    spec: str,
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prompt_len: int,
    params: Mapping[str, Given] | None = None,
    chunk: int | None = None,
    q_start: int = 0,
    rotated: bool = True,
    rope: Rope | RopeSpec | None = None,
    dtype: torch.dtype | None = None,
    record: Sequence[str] = (),
    target: str = "reference",
    device: torch.device | str = "cpu",
) -> Trace:
    """Replay `spec` (a shipped method's name, a path, or the text of a spec) on recorded tensors of one sequence.

    q [layer, token from q_start, q_head, channel], k and v [layer, token, kv_head, channel]. `chunk=None` is one prefill chunk. `rotated=False`:
    q and k are before RoPE, and `rope` rotates them. `dtype` casts the inputs and is the dtype of payload and scales. `device`: where the targets
    torch and triton run; the trace lies on the CPU.
    """
    if target not in TARGETS:
        raise ReplayError(f"target {target!r} does not exist; the targets are {', '.join(TARGETS)}")
    request = ReplayRequest(q, k, v, prompt_len, chunk, q_start, rotated, _rope(rope, k), tuple(record))
    check_request(request)
    request = _cast(request, dtype, _device(device, target))
    source = _source(spec)
    checked, values = _resolved(source, params or {}, request)
    if target == "reference":
        from sparsec.reference.run import interpret

        return interpret(checked.method, values, request)
    from sparsec.pipeline import Compilation

    if target == "triton":
        from sparsec.replay_triton import run
    else:
        from sparsec.replay_torch import run
    compilation = Compilation(source, dict(params or {}), model_facts(request), target, frozenset(record))
    return run(compilation, request)


def model_facts(request: ReplayRequest) -> dict[str, int | float]:
    """The facts of the model that the tensors come from."""
    return {
        "n_layers": request.layers,
        "kv_heads": request.kv_heads,
        "group": request.group,
        "head_dim": request.head_dim,
        "kv_width": 2 * request.kv_heads * request.head_dim,
        "scale": request.head_dim**-0.5,
        "chunk": request.chunk or request.prompt_len,
    }


def check_request(request: ReplayRequest) -> None:
    """Shapes and ranges, before any method is looked at."""
    q, k, v = request.q, request.k, request.v
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ReplayError(f"{name} has {tensor.ndim} axes; it is [layer, token, head, channel]")
        if not tensor.is_floating_point():
            raise ReplayError(f"{name} is {tensor.dtype}; q, k and v are floating point")
    if k.shape != v.shape:
        raise ReplayError(f"k is {tuple(k.shape)} and v is {tuple(v.shape)}; they have one shape [layer, token, kv_head, channel]")
    tokens = k.shape[1]
    if not 1 <= request.prompt_len <= tokens:
        raise ReplayError(f"prompt_len = {request.prompt_len} is outside 1..{tokens}, the tokens of k")
    if not 0 <= request.q_start <= tokens:
        raise ReplayError(f"q_start = {request.q_start} is outside 0..{tokens}, the tokens of k")
    wanted = (k.shape[0], tokens - request.q_start, k.shape[3])
    if (q.shape[0], q.shape[1], q.shape[3]) != wanted:
        raise ReplayError(
            f"q is {tuple(q.shape)}; with q_start = {request.q_start} it has {wanted[0]} layers, {wanted[1]} tokens and {wanted[2]} channels"
        )
    if q.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ReplayError(f"{q.shape[2]} query heads do not divide over {k.shape[2]} KV heads")
    if request.chunk is not None and request.chunk < 1:
        raise ReplayError(f"chunk = {request.chunk}; it is at least 1, or None for one chunk")
    if not request.rotated and request.rope is None:
        raise ReplayError("rotated=False needs rope = {theta, style, dim}, to rotate q and k")


def _rope(rope: Rope | RopeSpec | None, k: Tensor) -> Rope | None:
    if rope is None or isinstance(rope, Rope):
        return rope
    unknown = set(rope) - {"theta", "style", "dim"}
    if unknown or "theta" not in rope:
        raise ReplayError(f"rope has the keys {sorted(rope)}; it takes theta, and may take style and dim")
    style = rope.get("style", "half-split")
    if style not in ("half-split", "interleaved"):
        raise ReplayError(f"rope style {style!r} does not exist; it is half-split or interleaved")
    dim = int(rope.get("dim", k.shape[-1]))
    if not 2 <= dim <= k.shape[-1] or dim % 2:
        raise ReplayError(f"rope dim = {dim}; it is even and at most the {k.shape[-1]} channels of k")
    return Rope.plain(float(rope["theta"]), dim, style)


def _device(device: torch.device | str, target: str) -> torch.device:
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ReplayError(f"device {device!r} does not exist") from error
    if target == "reference" and found.type != "cpu":
        raise ReplayError(f"device {device!r}: the reference runs on cpu; the targets torch and triton run on other devices too")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ReplayError(f"device {device!r}: there is no CUDA here")
    return found


def _cast(request: ReplayRequest, dtype: torch.dtype | None, device: torch.device) -> ReplayRequest:
    wanted = dtype or request.k.dtype
    if not wanted.is_floating_point:
        raise ReplayError(f"dtype {wanted} is not floating point")
    q, k, v = (x.detach().to(device, wanted) for x in (request.q, request.k, request.v))
    return replace(request, q=q, k=k, v=v)


def _resolved(source: Source, params: Mapping[str, Given], request: ReplayRequest) -> tuple[Checked, dict[str, Value]]:
    """The checked method and a value for every param, with the same messages on every target."""
    facts = model_facts(request)
    checked = check(parse(source), source, facts)
    try:
        return checked, ParamTable.of(checked).resolve(params, facts, request.prompt_len)
    except ParamError as error:
        raise ReplayError(str(error)) from error


def _source(spec: str) -> Source:
    """The text itself, or what a name or path stands for."""
    return Source("<text>", spec) if "\n" in spec else load_source(spec)


class _CallableModule(ModuleType):
    """`sparsec.replay` names this module and the function that users call: importing the module must not hide the function."""

    __call__ = staticmethod(replay)


sys.modules[__name__].__class__ = _CallableModule

__all__ = ["Recorded", "ReplayError", "ReplayRequest", "RopeSpec", "Trace", "check_request", "model_facts", "replay"]
