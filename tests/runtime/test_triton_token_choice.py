"""A choice of tokens in interpreter mode: the lists that one layer's logits give, against torch."""

from __future__ import annotations

import math
import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import SMALL, engine, ids_of_rows, with_kernels
from ranking import best_by_torch
from sparsec_runtime.gpu import tokens as choice
from sparsec_runtime.gpu.buffers import CHOSEN_TOKENS

HELD, FIRST, NEWEST = (0, 1, 7, 40, 64, 64, 64), (0, 2, 2, 3, 4, 0, 40), (0, 1, 5, 8, 4, 1, 30)


def listed(logits, count, shares):
    out = torch.full((len(HELD), 64), -1, dtype=torch.int32)
    numbers = [torch.tensor(x, dtype=torch.int32) for x in (HELD, FIRST, NEWEST, count)]
    choice.list_tokens(logits, *numbers, out, shares=shares)
    return out


def worth(logits, row, shares):
    """Of the tokens of one row [token]; 0 outside the candidates."""
    held, first, newest = HELD[row], FIRST[row], NEWEST[row]
    inner = logits[row, :, first : held - newest].double() * math.log(2.0)
    best = (inner.softmax(-1) if shares else inner).amax(0) if first < held - newest else inner[0]
    found = torch.zeros(held)
    found[first : max(first, held - newest)] = best.float()
    return found


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("heads", [1, 6, 8])
def test_lists_hold_the_first_the_newest_and_the_best_others(heads, shares, monkeypatch):
    monkeypatch.setattr(choice, "PART", 32)
    monkeypatch.setattr(choice, "TILE", 16)
    generator = torch.Generator().manual_seed(heads)
    logits = 6 * torch.randn(len(HELD), heads, 64, generator=generator)
    for row, held in enumerate(HELD):
        logits[row, :, held:] = float("nan")  # no row reads behind its end
    count = [min(held, first + newest + 5) for held, first, newest in zip(HELD, FIRST, NEWEST)]
    found = listed(logits, count, shares)
    for row in range(len(HELD)):
        assert found[row].tolist() == best_by_torch(worth(logits, row, shares), count[row], FIRST[row], NEWEST[row], 64)


def test_a_head_of_large_logits_outweighs_others_by_logit_and_not_by_share():
    """The worked example of two heads: token 2 holds two thirds of the second head's mass, and its logit is no match for the first head's."""
    heads = [[9.0, 8.0, 8.1, 8.2, 8.3, 8.2, 8.1, 8.0, 9.0, 9.0], [0, -3, 5, -3, -3, 4, -3, 3, 1, 1]]
    logits = torch.tensor([heads]) / math.log(2.0)
    held, first, newest, count = (torch.tensor([x], dtype=torch.int32) for x in (10, 1, 2, 6))
    for shares, expected in ((True, [0, 2, 4, 5, 8, 9]), (False, [0, 3, 4, 5, 8, 9])):
        out = torch.full((1, 6), -1, dtype=torch.int32)
        choice.list_tokens(logits, held, first, newest, count, out, shares=shares)
        assert out[0].tolist() == expected


def test_a_row_does_not_depend_on_the_rows_beside_it():
    logits = torch.randn(3, 4, 96, generator=torch.Generator().manual_seed(1))
    numbers = [torch.tensor(x, dtype=torch.int32) for x in ([96, 50, 3], [4, 0, 1], [8, 4, 1], [30, 12, 3])]
    together, alone = torch.zeros(3, 30, dtype=torch.int32), torch.zeros(1, 30, dtype=torch.int32)
    choice.list_tokens(logits, *numbers, together, shares=True)
    choice.list_tokens(logits[:1], *(x[:1] for x in numbers), alone, shares=True)
    assert together[0].equal(alone[0])


def test_listed_tokens_become_slots_of_their_pages(monkeypatch):
    monkeypatch.setattr(choice, "TILE", 4)
    table = torch.tensor([[[7, 3, 9]], [[2, 5, 1]]], dtype=torch.int32)
    listed = torch.tensor([[0, 3, 4, 6, 9, 11], [1, 4, 5, 0, 0, 0]], dtype=torch.int32)
    choice.place_tokens(listed, torch.tensor([6, 3], dtype=torch.int32), table, 4)
    assert listed.tolist() == [[28, 31, 12, 14, 37, 39], [9, 20, 21, 0, 0, 0]]


def ids_with(params, kernels, lengths=(41, 9), new=4, tokens=128):
    made = engine("omnikv", params={**SMALL["omnikv"], **params})
    made = with_kernels(made, tokens) if kernels else made
    return ids_of_rows(made, lengths, new), made.graphs


@pytest.mark.parametrize("params", [{"selector": "logit"}, {"candidates": "prompt"}, {"filters": "{0}", "waits": "{0, 1}"}, {"filters": "{0, 1}"}, {"sinks": 0, "budget": 1}], ids=str)
def test_a_whole_model_gives_the_ids_of_the_eager_path(params):
    found, graphs = ids_with(params, kernels=True)
    assert any(graphs.forward.lists) and any(graphs.forward.reads)
    assert found == ids_with(params, kernels=False)[0]


def test_the_last_of_a_run_of_filters_chooses_and_the_layers_after_it_read():
    forward = ids_with({"filters": "{0, 1}"}, kernels=True)[1].forward
    assert forward.lists == (False, True, False) and forward.reads == (False, False, True)


def test_a_long_row_reads_a_fixed_number_of_tokens_and_a_short_one_all(monkeypatch):
    counts = []
    monkeypatch.setattr("sparsec_runtime.gpu.forward.list_tokens", lambda *args, **options: counts.append(args[4].tolist()) or choice.list_tokens(*args, **options))
    ids_with({}, kernels=True)
    small = SMALL["omnikv"]
    assert {pair[0] for pair in counts} == {small["budget"] + small["window"] + small["sinks"]}
    assert [pair[1] for pair in counts] == [10, 10, 11, 11, 12, 12], "two layers choose in each of three steps"


def test_a_choice_that_grows_with_every_step_finds_room_and_keeps_the_ids():
    params = {"candidates": "prompt", "budget": 4, "window": 1, "sinks": 0}
    found, graphs = ids_with(params, kernels=True, lengths=(20,), new=12)
    assert found == ids_with(params, kernels=False, lengths=(20,), new=12)[0]
    assert graphs.buffers_of(1).choice >= 4 + 11 and int(graphs.buffers_of(1).header[CHOSEN_TOKENS, 0]) == 4 + 11
