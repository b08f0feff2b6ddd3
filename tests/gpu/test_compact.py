"""Rows that stay moved to the front of their pages on the device, where threads of a program run beside each other: against a gather of a copy."""

from __future__ import annotations

import pytest
import torch
from sparsec_runtime.gpu.compact import move_to_front
from sparsec_runtime.zones import Geometry, PagedArray

HEADS, PAGE, LAYERS = 4, 16, 8


@pytest.mark.parametrize("channels", [80, 96, 128, 256])
@pytest.mark.parametrize(("held", "kept"), [(4096, (4095, 1, 512)), (4096, (4032, 2048, 65)), (8192, (8000, 8191, 8192))])
def test_every_array_of_every_row_is_moved(channels, held, kept):
    torch.manual_seed(0)
    device, rows = torch.device("cuda"), len(kept)
    geometry = Geometry("shared", LAYERS, HEADS, PAGE, rows * held, device)
    kinds = (((channels,), torch.bfloat16), ((channels,), torch.bfloat16), ((), torch.int32), ((), torch.float32), ((), torch.float32))
    arrays = [PagedArray(geometry, PAGE, inner, dtype) for inner, dtype in kinds]
    for array in arrays:
        array.data.copy_(torch.randint(-100, 100, array.data.shape, device=device))
    table = (torch.randperm(rows * held // PAGE, device=device) + 1).reshape(rows, -1).to(torch.int32)
    source = torch.zeros((LAYERS, rows * HEADS, max(kept)), dtype=torch.int32, device=device)
    for row, count in enumerate(kept):
        chosen = torch.rand((LAYERS, HEADS, held), device=device).topk(count).indices.sort(-1).values
        source[:, row * HEADS : (row + 1) * HEADS, :count] = chosen.to(torch.int32)
    before = [array.data.clone() for array in arrays]
    numbers = torch.tensor(kept, dtype=torch.int32, device=device)
    torch.cuda.set_sync_debug_mode("error")  # no wait for the device
    try:
        move_to_front(arrays, HEADS, table, source, numbers)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for array, old in zip(arrays, before):
        assert torch.equal(array.data[:, :HEADS], old[:, :HEADS]), "the page of no row"
        for row, count in enumerate(kept):
            for head in range(HEADS):
                now, then = (data[:, table[row].long() * HEADS + head].flatten(1, 2) for data in (array.data, old))
                index = source[:, row * HEADS + head, :count].long()
                expected = torch.stack([lines[of] for lines, of in zip(then, index)])
                assert torch.equal(now[:, :count], expected) and torch.equal(now[:, count:], then[:, count:])
