"""Page tables on the device: whatever requests grow, shrink, come, go or change places, a step finds there what the host has, and sends what is new alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from sparsec_runtime.gpu.mirror import TableMirror
from sparsec_runtime.memory import MemoryPool
from sparsec_runtime.sequence import Sequence
from sparsec_runtime.tables import PageTable

NAMES, WIDTH = ("rows", "codes"), 40


def request(table_rows: int) -> Sequence:
    return Sequence("", {}, np.zeros((1, 1), dtype=np.int64), {}, {name: PageTable(table_rows) for name in NAMES})


def mirror_of(batch: int, table_rows: int) -> TableMirror:
    return TableMirror({name: torch.full((batch, table_rows, WIDTH), -1, dtype=torch.int32) for name in NAMES})


def assert_alike(mirror: TableMirror, sequences: list[Sequence]) -> None:
    for name, table in mirror.tables.items():
        for row, sequence in enumerate(sequences):
            own = sequence.tables[name]
            for line, used in enumerate(own.used):
                assert table[row, line, :used].tolist() == own.pages[line, :used].tolist(), (name, row, line)


@pytest.mark.parametrize("table_rows", [1, 3, 16])
def test_the_device_has_the_tables_of_the_host_after_any_changes(table_rows: int) -> None:
    chance, pools = random.Random(table_rows), {name: MemoryPool(name, 8 * table_rows * WIDTH) for name in NAMES}
    mirrors = [mirror_of(6, table_rows), mirror_of(6, table_rows)]  # of two batch sizes: one sees only some of the steps
    batch: list[tuple[int, Sequence]] = []
    for step in range(600):
        if len(batch) < 6 and chance.random() < 0.3:
            batch.insert(chance.randrange(len(batch) + 1), (step, request(table_rows)))
        elif len(batch) > 1 and chance.random() < 0.1:
            _, gone = batch.pop(chance.randrange(len(batch)))
            for name in NAMES:
                gone.tables[name].shrink(np.zeros(table_rows, dtype=np.int64), pools[name])
        for _, sequence in batch:
            for name in NAMES:
                wanted = np.array([chance.randrange(WIDTH + 1) for _ in range(table_rows)])
                change = sequence.tables[name].grow if chance.random() < 0.8 else sequence.tables[name].shrink
                change(wanted, pools[name])
        if batch:
            handles, sequences = zip(*batch)
            mirror = mirrors[0] if chance.random() < 0.7 else mirrors[1]
            mirror.update(handles, list(sequences))
            assert_alike(mirror, list(sequences))


def test_a_step_sends_the_entries_that_it_added_and_no_others() -> None:
    heads, pools, sequences = 256, {name: MemoryPool(name, 10000) for name in NAMES}, [request(256), request(256)]
    mirror, used = mirror_of(2, heads), np.arange(heads) % 20 + 1
    for sequence in sequences:
        for name in NAMES:
            sequence.tables[name].grow(used, pools[name])
    assert mirror.update((1, 2), sequences) == 2 * 2 * heads * 20
    assert mirror.update((1, 2), sequences) == 0
    sequences[1].tables["rows"].grow(used + (np.arange(heads) % 16 == 3), pools["rows"])
    assert mirror.update((1, 2), sequences) == heads // 16
    assert_alike(mirror, sequences)


def test_a_request_in_another_batch_row_is_sent_anew() -> None:
    pools, sequences, mirror = {name: MemoryPool(name, 100) for name in NAMES}, [request(1), request(1)], mirror_of(2, 1)
    for sequence in sequences:
        for name in NAMES:
            sequence.tables[name].grow(np.array([5]), pools[name])
    mirror.update((1, 2), sequences)
    assert mirror.update((2, 1), sequences[::-1]) == 20
    assert_alike(mirror, sequences[::-1])


def test_a_request_that_keeps_its_row_is_not_sent_again_when_the_batch_grows_or_shrinks() -> None:
    pools, sequences, mirror = {name: MemoryPool(name, 100) for name in NAMES}, [request(1), request(1)], mirror_of(2, 1)
    for sequence in sequences:
        for name in NAMES:
            sequence.tables[name].grow(np.array([5]), pools[name])
    assert [mirror.update(handles, sequences[: len(handles)]) for handles in ((1,), (1, 2), (1,), (1, 2))] == [10, 10, 0, 0]


def test_more_pages_than_were_captured_are_refused() -> None:
    sequence, pool, mirror = request(1), MemoryPool("rows", 100), mirror_of(1, 1)
    sequence.tables["rows"].grow(np.array([WIDTH + 1]), pool)
    with pytest.raises(AssertionError, match="captured for 40"):
        mirror.update((1,), [sequence])
