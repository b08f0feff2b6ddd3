"""A broken runtime is found, by the property that is about what is broken. Each test plants one bug and expects that property to fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsec_runtime import cache, writing, zones
from sparsec_runtime.cache import CacheManager
from sparsec_runtime.memory import MemoryPool
from sparsec_runtime.resident import Resident
from sparsec_runtime.tables import PageTable
from sparsec.verify.properties import BUILT_IN
from sparsec.verify.report import Outcome, Status
from sparsec.verify.runner import verify
from sparsec.verify.subject import Subject

SPEC = """sparse 1

method sample "Keeps what drew attention, evicts every few steps, quantises nothing" {
  param budget: tokens in 1.. = 12
  param newest: tokens in 1..budget = max(1, budget // 2)

  state score[t, h]: f32 = 0

  on after_prefill_attention, after_decode_attention {
    score[t, h] += sum[i, g](probs[i, h, g, t])
  }

  on end_of_prompt, finish_step when prompt_done and len > budget + 2 {
    evict keep recent(newest) then top[t](score[t, h]) upto budget
  }
}
"""


Statuses = Callable[[], dict[str, Outcome]]


def broken(outcomes: dict[str, Outcome], name: str, says: str) -> bool:
    """Whether a property failed for the reason that was planted, and not because a run broke down."""
    outcome = outcomes[name]
    assert outcome.failed, f"{name} is {outcome.status}"
    assert says in outcome.reason, outcome.reason
    return outcome.trace is not None


@pytest.fixture
def statuses(tmp_path: Path) -> Statuses:
    """Outcomes of the torch properties by name."""
    path = tmp_path / "sample.sparse"
    path.write_text(SPEC)

    def run() -> dict[str, Outcome]:
        subject = Subject.load(str(path), {"budget": "9", "newest": "3"})
        return {outcome.property: outcome for outcome in verify(subject, (1,), ("torch",))}

    return run


def test_without_a_bug_everything_passes(statuses: Statuses) -> None:
    found = statuses()
    assert set(found) == {one.name for one in BUILT_IN if one.target == "torch"}
    assert not [outcome for outcome in found.values() if outcome.failed]
    assert sum(outcome.status is Status.PASSED for outcome in found.values()) >= 10


def test_an_eviction_that_keeps_the_wrong_row_is_found_beside_the_oracle(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Resident.evict
    monkeypatch.setattr(Resident, "evict", lambda self, keep: real(self, keep.roll(1, -1) & self.valid))
    assert broken(statuses(), "interpreter equals target", "does not do what the oracle does")


def test_rows_that_a_compaction_mixes_up_are_found(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    real = zones.RawStore.compact
    monkeypatch.setattr(
        zones.RawStore, "compact",
        lambda self, at, layer, source, rows, valid: real(self, at, layer, source.flip(1) if source.shape[1] > 1 else (source - 1).clamp(0), rows, valid),
    )  # fmt: skip
    assert broken(statuses(), "rows follow their tokens", "is not that of its token")


def test_positions_that_count_rows_instead_of_tokens_are_found(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Resident, "_positions", lambda self: torch.where(self.valid, self.order.expand(*self.rows.shape, self.width), -1))
    assert broken(statuses(), "positions", "the newest row has position")


def test_pages_that_are_never_given_back_are_found(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageTable, "shrink", lambda self, wanted, pool: 0)
    found = statuses()
    assert broken(found, "slots conserved", "still live with no request open")
    assert broken(found, "bytes live", "its rows need")


def test_a_pool_that_loses_pages_is_found(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryPool.release

    def lose_one(self: MemoryPool, pages: np.ndarray) -> None:
        real(self, pages)
        self.free -= min(1, self.free)

    monkeypatch.setattr(MemoryPool, "release", lose_one)
    monkeypatch.setattr(MemoryPool, "check_conserved", lambda self: None)
    assert broken(statuses(), "slots conserved", "free +")


def test_a_row_that_reads_the_padding_of_a_batch_is_found(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cache.attend_decode

    def reads_padding(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, lengths: list[int], scale: float) -> Tensor:
        if len(lengths) > 1:
            mask, lengths = torch.ones_like(mask), [max(lengths)] * len(lengths)
        return real(q, keys, values, mask, lengths, scale)

    monkeypatch.setattr(cache, "attend_decode", reads_padding)
    assert broken(statuses(), "batch equals single", "differs from itself alone")


def test_a_state_that_outlives_its_request_is_found(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    """New rows keep the state value that their slot had."""
    monkeypatch.setattr(writing, "_write_row_data", _without_initial_states(writing._write_row_data))
    found = statuses()
    assert broken(found, "no leak between requests", "after another request")
    assert broken(found, "slot placement", "on other pages")


def _without_initial_states(real: Callable[[Resident], None]) -> Callable[[Resident], None]:
    def write(resident: Resident) -> None:
        states, resident.storage.token_states = resident.storage.token_states, {}
        real(resident)
        resident.storage.token_states = states

    return write


def test_a_query_that_misses_its_own_row_is_found(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Resident.visible_to
    monkeypatch.setattr(
        Resident, "visible_to", lambda self, first, last, width: real(self, first, last, width) & (torch.arange(width) < max(1, self.width - 1))
    )
    assert broken(statuses(), "self-visibility", "does not read its own row")


def test_a_run_that_breaks_down_is_a_failure_with_its_trace_and_no_traceback(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_down(self: CacheManager) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(CacheManager, "finish", breaks_down)
    assert broken(statuses(), "interpreter equals target", "the torch run failed: AssertionError: planted")
