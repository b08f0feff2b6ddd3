"""Loads golden cases and replays them; `on_kernels` leaves out what decode kernels do not store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from comparing import Case, compared
from replay_calls import Call, replay_call
from safetensors.torch import load_file

from sparsec.dsl import tree as t
from sparsec.dsl.parser import parse
from sparsec.dsl.source import load_source
from sparsec.replay import replay
from sparsec.trace import Trace

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))
# No kernels: each query head reads pages of its own.
WITHOUT_KERNELS = {"quest_eval_perhead_partial_page": "build_decode_selection"}


def load(name: str) -> Case:
    meta = json.loads((DATA / f"{name}.json").read_text())
    tensors: dict[str, torch.Tensor] = {}
    for file in meta["files"]:
        tensors |= load_file(DATA / file)
    return Case(meta, tensors)


def run(case: Case, call: Call, target: str, chunk: int | None, device: str = "cpu") -> Trace:
    source = "_pre" if not call.rotated else ""
    return replay(
        call.spec,
        q=case.tensors["q" + source],
        k=case.tensors["k" + source],
        v=case.tensors["v"],
        prompt_len=case.meta["prompt_len"],
        q_start=case.meta.get("q_start", 0),
        params=call.params,
        chunk=chunk,
        rotated=call.rotated,
        rope=call.rope,
        dtype=call.dtype,
        record=call.record,
        target=target,
        device=device,
    )


def call_of(case: Case, name: str) -> Call:
    call = replay_call(case.meta)
    assert isinstance(call, Call), f"every shared case of these methods is a call, but {name} is {call}"
    return call


def on_kernels(call: Call) -> Call:
    """The call without what lives in a let: a decode kernel stores none."""
    lets = {node.target.name.text for node in t.walk(parse(load_source(call.spec)).method) if isinstance(node, t.Let)}
    compare = {name: entry for name, entry in call.compare.items() if entry[0] not in lets}
    return replace(call, compare=compare, record=tuple(name for name in call.record if name not in lets))


def entries_compared(name: str, target: str, device: str = "cpu") -> int:
    """Replays a case and asserts that its trace holds the expected tensors; how many of their entries were looked at."""
    case = load(name)
    call = call_of(case, name)
    if target == "triton":
        call = on_kernels(call)
    trace = run(case, call, target, call.chunk, device)
    return sum(compared(case, call, trace, expected) for expected in call.compare)
