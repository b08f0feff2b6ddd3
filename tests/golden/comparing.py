"""Compares one expected tensor of a golden case with a trace: the layout of each kind of tensor is written down here, once.

Sets and codes are equal; scores and outputs within rtol 1e-4, atol 1e-5 in fp32, looser in fp16 as golden/README says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from replay_calls import Call
from torch import Tensor

from sparsec.trace import Recorded, Trace

ABSENT = -1e29  # expected scores below this are place holders


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    meta: dict
    tensors: dict[str, Tensor]

    @property
    def prompt_len(self) -> int:
        return self.meta["prompt_len"]


def compared(case: Case, call: Call, trace: Trace, expected: str) -> int:
    """Assert that a trace holds the expected tensor; the number of entries that were looked at."""
    what, factor = call.compare[expected]
    wanted = case.tensors[expected]
    kind = re.sub(r"\d+", "#", expected.split(".")[0])
    return _KINDS[kind](case, call, trace, expected, what, factor, wanted)


def close(got: Tensor, wanted: Tensor, call: Call, loose: float = 2e-3) -> int:
    half = call.dtype in (torch.float16, torch.bfloat16)
    tolerance = {"rtol": loose, "atol": loose} if half else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got.double(), wanted.double(), **tolerance)
    return wanted.numel()


def same(got: Tensor, wanted: Tensor, where: str) -> int:
    assert got.tolist() == wanted.tolist(), f"{where}: got {got.tolist()}, expected {wanted.tolist()}"
    return max(1, wanted.numel())


def _numbers(expected: str) -> tuple[int, int, int]:
    """(step, layer, head) of names like kept_step3.L0.H1."""
    step = re.match(r"[a-z_]+?step(\d+)", expected)
    layer, head = re.search(r"\.L(\d+)", expected), re.search(r"\.H(\d+)", expected)
    return int(step[1]) if step else 0, int(layer[1]) if layer else 0, int(head[1]) if head else 0


# ---- eviction --------------------------------------------------------------------------------


def _kept(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    step, layer, head = _numbers(expected)
    return same(trace.kept[step][layer][head], wanted, expected)


def _visible(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    step, layer, _ = _numbers(expected)
    return sum(same(head, wanted, expected) for head in trace.attended[step][layer])


def _out(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    start = case.prompt_len - case.meta.get("q_start", 0)
    return close(trace.output[:, start : start + wanted.shape[1]], wanted, call, 2e-2)


def _prompt_out(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    _, layer, _ = _numbers(expected)
    stop = case.prompt_len - case.meta.get("q_start", 0)
    return close(trace.output[layer, stop - wanted.shape[0] : stop], wanted, call, 2e-2)


def _score(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """Scores are aligned with score_pos, or with the rows kept after their step."""
    step, layer, head = _numbers(expected)
    suffix = f".L{layer}.H{head}"
    positions = case.tensors[f"kept_step{step}{suffix}" if step else f"score_pos{suffix}"]
    recorded = _one(trace, what, step, layer).at(head)
    return close(factor * torch.stack([recorded[int(p)] for p in positions]), wanted, call)


def _one(trace: Trace, what: str, step: int, layer: int) -> Recorded:
    recorded = trace.recorded[what][step][layer]
    assert recorded is not None, f"{what} has no value after step {step} in layer {layer}"
    return recorded


# ---- selection -------------------------------------------------------------------------------


def _page_scores(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """[step, layer, q_head, page]"""
    seen = 0
    for step in range(wanted.shape[0]):
        for layer in range(wanted.shape[1]):
            present = wanted[step, layer] > ABSENT
            if present.any():
                bound = _laid(_one(trace, what, step + 1, layer), "hgp").flatten(0, 1)
                bound = torch.nn.functional.pad(bound, (0, wanted.shape[3] - bound.shape[1]), value=-1e30)
                seen += close(factor * bound[present], wanted[step, layer][present], call)
    return seen


def _page_bounds(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """[layer, full prompt page, kv_head, channel]"""
    layers = [_laid(_one(trace, what, 0, layer), "phc")[: wanted.shape[1]] for layer in range(wanted.shape[0])]
    return close(factor * torch.stack(layers), wanted, call)


def _pages_read(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """[step, layer, q_head or kv_head, page], -1 at the end"""
    size, seen = case.meta["params"]["page_size"], 0
    for step, layers in enumerate(wanted):
        for layer, heads in enumerate(layers):
            repeat = case.meta["q_heads"] // heads.shape[0]
            for head, pages in enumerate(heads.repeat_interleave(repeat, 0)):
                read = trace.attended[step + 1][layer][head] // size
                seen += same(read.unique(), pages[pages >= 0], f"{expected} step {step + 1} layer {layer} head {head}")
    return seen


def _tokens_read(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """[step, layer, slot], -1 at the end; an empty row is a dense layer."""
    seen = 0
    for step, layers in enumerate(wanted):
        for layer, tokens in enumerate(layers):
            tokens = tokens[tokens >= 0]
            if tokens.numel() == 0:
                tokens = torch.arange(case.prompt_len + step + 1)
            for head in trace.attended[step + 1][layer]:
                seen += same(head, tokens, f"{expected} step {step + 1} layer {layer}")
    return seen


def _token_scores(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """[step, filter layer, token]"""
    seen = 0
    for step, layers in enumerate(wanted):
        for scores, layer in zip(layers, case.meta["params"]["filter_layers"], strict=True):
            recorded = _one(trace, what, step + 1, layer).at(0)
            places = (scores > ABSENT).nonzero().squeeze(-1).tolist()
            seen += close(factor * torch.stack([recorded[p] for p in places]), scores[places], call)
    return seen


def _steps_out(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """[step, layer, q_head, channel]"""
    start = case.prompt_len - case.meta.get("q_start", 0)
    return close(trace.output[:, start : start + wanted.shape[0]].transpose(0, 1), wanted, call, 2e-2)


# ---- codecs ----------------------------------------------------------------------------------


def _coded(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """Final state: K parts [layer, kv_head, channel, token], V parts [layer, kv_head, token, channel]."""
    order = "hct" if expected.startswith("expected_k") else "htc"
    got = torch.stack([_laid(_one(trace, what, -1, layer), order) for layer in range(wanted.shape[0])])
    if expected.endswith("codes"):
        return same(got.int(), wanted, expected)
    return close(factor * got, wanted, call)


def _schedule(case: Case, call: Call, trace: Trace, expected: str, what: str, factor: float, wanted: Tensor) -> int:
    """[step, (k quantised, k residual, v quantised, v residual)]; ZONE.rows has rows whose K, whose V lie in the zone."""
    for step, row in enumerate(wanted.tolist()):
        k, v = _one(trace, what, step, 0).values.tolist()
        total = case.prompt_len + step
        assert [k, total - k, v, total - v] == row, f"after step {step}"
    return wanted.numel()


def _laid(recorded: Recorded, letters: str) -> Tensor:
    assert sorted(recorded.letters) == sorted(letters), f"recorded over {recorded.letters}, expected {letters}"
    return recorded.values.permute([recorded.letters.index(letter) for letter in letters])


_KINDS = {
    "kept_after_prompt": _kept,
    "kept_step#": _kept,
    "visible_step#": _visible,
    "out": _out,
    "prompt_out_last#": _prompt_out,
    "score": _score,
    "score_step#": _score,
    "expected_page_scores": _page_scores,
    "expected_page_max": _page_bounds,
    "expected_page_min": _page_bounds,
    "expected_sel_pages": _pages_read,
    "expected_sel_tokens": _tokens_read,
    "expected_scores": _token_scores,
    "expected_out": _steps_out,
    "expected_schedule": _schedule,
    **{f"expected_{part}_{kind}": _coded for part in "kv" for kind in ("codes", "scale", "min")},
}
