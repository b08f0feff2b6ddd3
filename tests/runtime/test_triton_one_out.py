"""Evictions of one row after every step, in interpreter mode: the newest row takes the slot of the one that goes, and what stays is what the oracle keeps."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from against_oracle import Batch, assert_kernels_equal_oracle
from engines import add, drain, engine, ids_of_rows, prompt, with_kernels
from sparsec_runtime.decode_plan import TokenChoice
from sparsec_runtime.engine import Engine
from sparsec_runtime.gpu import evict
from sparsec_runtime.gpu.one_out import row_arrays
from sparsec_runtime.step import StepBatch

TINY = {"layers": 1, "channels": 16, "prompts": (10, 23), "new": 9}
BATCHES = (
    Batch("h2o", {"budget": 12, "recent": 5, "interval": 1}, **TINY),
    Batch("h2o", {"budget": 12, "recent": 12, "interval": 1, "reduce": "max"}, **TINY),
    Batch("streamingllm", {"budget": 9, "sinks": 3}, theta=10000.0, **TINY),
    Batch("streamingllm", {"budget": 5, "sinks": 4, "positions": "original"}, **TINY),
    Batch("tova", {"budget": 12, "protect": 0}, **TINY),
)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_after_every_step_what_is_kept_read_and_returned_is_what_the_oracle_says(batch: Batch) -> None:
    assert_kernels_equal_oracle(batch, "cpu")


H2O = {"budget": 16, "recent": 4, "interval": 1}


def rows_by_position(made: Engine, handle: int, layer: int, head: int) -> dict[int, tuple[torch.Tensor, torch.Tensor, float]]:
    """K, V and score of what a request holds, by logical position."""
    storage, sequence = made.manager.storage, made.manager.sequence(handle)
    slot = torch.arange(int(sequence.rows[layer, head]))
    pages = torch.from_numpy(sequence.tables[storage.row_stream.name].pages[0]).long()
    line = (pages[slot // storage.page_size] * storage.heads + head) * storage.page_size + slot % storage.page_size
    keys, values, positions, score = (array.flat(layer)[line] for array in row_arrays(storage))
    return {int(position): (keys[n], values[n], float(score[n])) for n, position in enumerate(positions)}


def survivors(rows: dict[int, float], newest: int) -> set[int]:
    """One row less: of those that are not among the newest, that of the least score, NaN below all, and of equals the newest."""
    others = sorted(rows)[: len(rows) - newest]
    return set(rows) - {min(others, key=lambda position: (not math.isnan(rows[position]), 0 if math.isnan(rows[position]) else rows[position], -position))}


@pytest.mark.parametrize("recent", (0, 4))
def test_of_equal_scores_the_newest_goes_and_rows_keep_what_is_theirs(recent: int) -> None:
    made = with_kernels(engine("h2o", params={**H2O, "recent": max(1, recent)}))
    keep = made.manager.DECODE.keep
    made.manager.DECODE = replace(made.manager.DECODE, keep=replace(keep, newest=lambda params: recent))
    storage, graphs = made.manager.storage, made.graphs
    score, commit, seen, pages = storage.token_states["score"][1].data, graphs.commit_step, [], []

    def tied() -> None:
        """Scores that recur, some of which are no numbers, before rows go by them."""
        at = storage.positions.data * 5 + len(seen) * 3
        score.copy_(torch.where(at % 11 == 0, float("nan"), (at % 4).float()))
        handles, held = graphs._batch.handles, [int(sequence.rows[0, 0]) for sequence in graphs._sequences]
        taken = [int(sequence.tables[storage.row_stream.name].pages[0, 1]) for sequence in graphs._sequences]
        for sequence in graphs._sequences:  # the step's row is not counted yet
            sequence.rows = sequence.rows + 1
        before = {(handle, layer, head): rows_by_position(made, handle, layer, head) for handle in handles for layer in (0, 1) for head in range(storage.heads)}
        for sequence in graphs._sequences:
            sequence.rows = sequence.rows - 1
        commit()
        for (handle, layer, head), rows in before.items():
            after = rows_by_position(made, handle, layer, head)
            wanted = survivors({position: row[2] for position, row in rows.items()}, recent) if len(rows) > H2O["budget"] else set(rows)
            assert set(after) == wanted
            for position, row in after.items():
                assert all(torch.equal(mine, old) for mine, old in zip(row[:2], rows[position][:2])) and repr(row[2]) == repr(rows[position][2])
        seen.append(held)
        pages.append(taken)

    graphs.commit_step = tied
    ids_of_rows(made, (20, 13), 10)
    assert max(seen[0]) == H2O["budget"] and min(seen[-1]) == H2O["budget"] > min(seen[0] + seen[1]), "one request evicts at once, one not yet"
    assert pages[-1] == pages[-2] and len(set(pages[-1])) == 2, "the page of the row that comes and goes stays with its request"


def test_ids_are_those_of_the_eager_path_after_prompts_in_chunks_and_after_a_preemption() -> None:
    for method, params in (("h2o", H2O), ("streamingllm", {"budget": 12, "sinks": 2})):
        params = {**params, "evict_in_prefill": True}
        made = with_kernels(engine(method, params=params, chunk=8))
        names = [add(made, prompt(length, seed=n), 12, name=f"row {n}") for n, length in enumerate((13, 9))]
        requests = {name: made._requests[name] for name in names}
        for _ in range(7):
            made.step()
        made._tell_pending()
        made._preempt(made.scheduler.victim())
        drain(made)
        assert made.stats().preemptions == 1
        assert {name: request.generated for name, request in requests.items()} == ids_of_rows(engine(method, params=params, chunk=8), (13, 9), 12)


SEVERAL = """sparse 1

method waves "Now and then several rows go at once"  {
  param budget: tokens in 4.. = 12
  state need[t, h]: f32 = 0
  on after_prefill_attention, after_decode_attention {
    need[t, h] += sum[i](mean[g](probs[i, h, g, t]))
  }
  on end_of_prompt, finish_step when prompt_done and len > max(3, budget - steps % 4) {
    evict keep recent(3) then top[t](need[t, h]) upto max(3, budget - steps % 4)
  }
}
"""


def test_requests_of_which_one_row_went_may_lose_several_later(tmp_path, monkeypatch) -> None:
    path = tmp_path / "waves.sparse"
    path.write_text(SEVERAL)
    sorted_again, put_in_order = [], evict.put_in_order
    monkeypatch.setattr(evict, "put_in_order", lambda storage, table, sequence: (sorted_again.append(sequence), put_in_order(storage, table, sequence)))
    made = with_kernels(engine(str(path), params={}))
    assert ids_of_rows(made, (20, 9), 9) == ids_of_rows(engine(str(path), params={}), (20, 9), 9)
    assert sorted_again, "no request was put in order again"


def test_a_method_that_takes_slots_for_ranks_keeps_its_rows_in_order() -> None:
    plan = engine("h2o", params=H2O).manager.DECODE
    choice = TokenChoice("chosen", True, *(lambda at: 1,) * 3)
    assert plan.any_order and not replace(plan, tokens=choice).any_order and not replace(plan, turns_keys=True).any_order


def test_torch_does_not_read_rows_that_kernels_have_scattered() -> None:
    made = with_kernels(engine("h2o", params=H2O))
    add(made, prompt(20), 8)
    for _ in range(6):
        made.step()
    made._tell_pending()
    handle = made.scheduler.running[0].handle
    with pytest.raises(AssertionError, match="in order of position"):
        made.manager.begin_step(StepBatch((handle,), 1, "decode", True, (6,)))
