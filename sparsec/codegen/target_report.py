"""What a target makes of a method's steps, and why not more: the section that `explain --target` adds."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from sparsec.codegen.skeletons import only_in_decode

if TYPE_CHECKING:
    from sparsec_runtime.models.outline import ModelOutline

    from sparsec.pipeline import Compilation

WIDTH = 116
_LIBRARY = "cuDNN attention in buckets (from compute capability 9 on), a Triton kernel for the rest"


@dataclass(frozen=True, slots=True)
class TargetReport:
    """kernels: generated ones of the decode step, in their order; eager: why the step has no graph (without a model: on none); positions: how a graph counts them
    anew, "" where it does not; evictions: how rows go after a step of a graph, "" where none do; prompt_hooks: what runs each hook of a prompt; unwritten: why torch
    turns and stores the rows of its chunks; masked: why it attends them; no_library: why cuDNN attends no part of a chunk (None: it depends on the model, and none was given).
    """

    target: str
    kernels: tuple[str, ...]
    eager: tuple[str, ...]
    positions: str
    evictions: str
    prompt_hooks: tuple[str, ...]
    unwritten: tuple[str, ...]
    masked: tuple[str, ...]
    no_library: tuple[str, ...] | None


def target_report(compilation: Compilation, model: ModelOutline | None) -> TargetReport:
    """Of a CUDA device; elsewhere every step runs the torch functions."""
    from sparsec.pipeline import load_manager

    method = load_manager(compilation)
    kernels = tuple(re.findall(r"^def (\w+)\(", compilation.decode or "", re.MULTILINE))
    eager, no_library = _eager(method, model), None if model is None else _no_library(model)
    positions, evictions = ("", "") if eager else (_positions(method), _evictions(method))
    masked = _masked(method)
    return TargetReport(compilation.target, kernels, eager, positions, evictions, _prompt_hooks(compilation, bool(masked)), _unwritten(method), masked, no_library)


def _eager(method: type, model: ModelOutline | None) -> tuple[str, ...]:
    """What the engine refuses to capture, in its order."""
    from sparsec_runtime.gpu.eligible import model_reasons, reasons_against_graph, reasons_of_layers

    from sparsec.model_facts import from_shape

    reasons = reasons_against_graph(method)
    return reasons if model is None else reasons + model_reasons(method, model) + reasons_of_layers(method, from_shape(model.shape).names())


def _positions(method: type) -> str:
    if method.LAYOUT.position != "rank":
        return ""
    if method.DECODE.turns_keys:
        return "ranks among the rows held: attention reads K before RoPE and turns it"
    return "ranks among the rows held: only the first and the newest rows are, so K lies turned and two queries are asked, one of each"


def _evictions(method: type) -> str:
    plan, moved = method.DECODE, "those that stay are moved up, in order"
    if not method.LAYOUT.evicts or plan.moves is not None or "finish_step" not in plan.hooks:
        return ""
    if plan.keep is None or method.LAYOUT.scope != "shared":
        return "torch functions between two graphs"
    if plan.any_order:
        return f"kernels between two graphs; where one row goes, the newest takes its slot; where several go, {moved}"
    return f"kernels between two graphs; {moved}, also where one row goes: {'attention' if plan.turns_keys else 'a choice of tokens'} takes slots for ranks"


def _prompt_hooks(compilation: Compilation, masked: bool) -> tuple[str, ...]:
    """A line for each hook that acts while a prompt is read, in their order."""
    from sparsec_runtime.hooks import PROMPT_HOOKS

    functions = {node.name: ast.unparse(node) for node in ast.parse(compilation.kernels).body if isinstance(node, ast.FunctionDef)}
    bound = [(hook, binding) for hook in PROMPT_HOOKS for binding in compilation.plan.bindings if hook in binding.hooks and not only_in_decode(binding)]
    kernels = "; Triton kernels sum the probs"
    return tuple(
        f"line {binding.line}, on {hook}: torch functions{kernels if _sums_on_device(functions[binding.function], masked) else ''}" for hook, binding in bound
    )


def _sums_on_device(function: str, masked: bool) -> bool:
    """Whether a generated function asks for a mass that kernels sum: of a chunk that sees all rows, or of a window whose probs it does not read."""
    of_chunk, of_window = "view.mass(" in function, re.search(r"(?<!view)\.mass\(", function) is not None
    return (of_chunk and not masked) or (of_window and ".probs" not in function)


def _unwritten(method: type) -> tuple[str, ...]:
    from sparsec_runtime.gpu.eligible import reasons_against_chunk_rows

    return reasons_against_chunk_rows(method)


def _masked(method: type) -> tuple[str, ...]:
    from sparsec_runtime.gpu.cuts import reasons_against_plain_prefill

    return reasons_against_plain_prefill(method)


def _no_library(model: ModelOutline) -> tuple[str, ...]:
    import torch
    from sparsec_runtime.gpu.cuts import shape_reasons

    return shape_reasons(model.shape.head_dim, getattr(torch, model.shape.dtype))


def report_text(report: TargetReport, method: str) -> str:
    lines = [f"on a CUDA device, target {report.target}"]
    if report.eager:
        lines += _entry("decode step", "torch functions, because", report.eager)
    else:
        lines += _entry("decode step", f"one CUDA graph a batch size; generated kernels: {', '.join(report.kernels)}")
        lines += _entry("", f"read them: sparsec compile {method} --emit decode")
        if report.no_library is None:
            lines += _entry("", "--model tells whether kernels do all that its layers do")
    if report.positions:
        lines += _entry("positions", report.positions)
    if report.evictions:
        lines += _entry("evictions", report.evictions)
    for n, hook in enumerate(report.prompt_hooks):
        lines += _entry("prompt hooks" if n == 0 else "", hook)
    rows = "turned and stored in torch, because" if report.unwritten else "turned and stored by a Triton kernel"
    lines += _entry("prompt rows", rows, report.unwritten)
    if report.masked:
        lines += _entry("prompt chunks", "in torch, by blocks of queries, because", report.masked)
    elif report.no_library is None:
        lines += _entry("prompt chunks", f"{_LIBRARY}; --model tells whether cuDNN takes its heads")
    elif report.no_library:
        lines += _entry("prompt chunks", "a Triton kernel alone, because", report.no_library)
    else:
        lines += _entry("prompt chunks", f"{_LIBRARY}, merged by log-sum-exp")
    return "\n".join(lines) + "\n"


def _entry(name: str, text: str, reasons: tuple[str, ...] = ()) -> list[str]:
    lines = wrap(text, WIDTH - 16) + [line for reason in reasons for line in wrap(reason, WIDTH - 20, initial_indent="- ", subsequent_indent="  ")]
    return [f"  {name if n == 0 else '':13} {line}" for n, line in enumerate(lines)]
