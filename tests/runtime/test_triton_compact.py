"""Rows that stay moved to the front of their pages, in interpreter mode: every array of a row, by random pages, as a copy of all rows says."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from sparsec_runtime.gpu.compact import move_to_front

LAYERS, HEADS, PAGE, HELD = 2, 3, 8, 120


def move(arrays, table, source, kept) -> None:
    move_to_front([SimpleNamespace(data=array) for array in arrays], HEADS, table, source, torch.tensor(kept, dtype=torch.int32))


def made(kinds, rows: int):
    """Arrays [layer, unit, slot, ...] of (dtype, width; 0: a number a row) with random content, and a table [row, index] of random pages."""
    pages = rows * HELD // PAGE
    sizes = [(LAYERS, (pages + 1) * HEADS, PAGE, *((width,) if width else ())) for _, width in kinds]
    arrays = [torch.randint(-100, 100, size).to(dtype) for size, (dtype, _) in zip(sizes, kinds)]
    return arrays, (torch.randperm(pages) + 1).reshape(rows, -1).to(torch.int32)


def lines_of(array, table, layer, row, head):
    """[row of the cache, ...] of one place, in a copy."""
    return array[layer, table[row].long() * HEADS + head].flatten(0, 1)


def sources(rows: int, kept: list[int], held: int = HELD):
    """[layer, place, n]: kept[row] of the held rows, ascending; what lies behind is no row."""
    found = torch.full((LAYERS, rows * HEADS, max(kept)), 10**6, dtype=torch.int32)
    for layer in range(LAYERS):
        for place in range(rows * HEADS):
            n = kept[place // HEADS]
            found[layer, place, :n] = torch.randperm(held)[:n].sort().values
    return found


@pytest.mark.parametrize(
    "kinds",
    [
        [(torch.float32, 8), (torch.float32, 8), (torch.int32, 0), (torch.float32, 0)],
        [(torch.bfloat16, 12), (torch.bfloat16, 12), (torch.int32, 0), (torch.float32, 0), (torch.float32, 0), (torch.bool, 0)],
        [(torch.int64, 0)],
    ],
)
@pytest.mark.parametrize("kept", [[1, 37, 120], [16, 17, 96], [119, 120, 33]])
def test_every_array_of_a_row_is_moved_and_nothing_else(kinds, kept):
    torch.manual_seed(0)
    arrays, table = made(kinds, len(kept))
    source, before = sources(len(kept), kept), [array.clone() for array in arrays]
    move(arrays, table, source, kept)
    for array, old in zip(arrays, before):
        assert torch.equal(array[:, :HEADS], old[:, :HEADS]), "the page of no row"
        for layer in range(LAYERS):
            for place in range(len(kept) * HEADS):
                row, head = divmod(place, HEADS)
                now, then = lines_of(array, table, layer, row, head), lines_of(old, table, layer, row, head)
                n = kept[row]
                assert torch.equal(now[:n], then[source[layer, place, :n].long()])
                assert torch.equal(now[n:], then[n:]), "what lies behind the kept rows is not written"


def test_rows_that_all_stay_are_not_written():
    torch.manual_seed(0)
    arrays, table = made([(torch.float32, 8)], 1)
    before = arrays[0].clone()
    identity = torch.arange(HELD, dtype=torch.int32).expand(LAYERS, HEADS, HELD).contiguous()
    move(arrays, table, identity, [HELD])
    assert torch.equal(arrays[0], before)


def test_a_row_of_which_none_is_kept_is_left_as_it_is():
    torch.manual_seed(0)
    arrays, table = made([(torch.float32, 8), (torch.float32, 8)], 2)
    before = arrays[1].clone()
    move(arrays, table, sources(2, [0, 40]), [0, 40])
    assert torch.equal(lines_of(arrays[1], table, 1, 0, 2), lines_of(before, table, 1, 0, 2))
    assert not torch.equal(arrays[1], before)
