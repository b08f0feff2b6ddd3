"""Block sizes: what may be said of them without a device."""

import torch
from sparsec_runtime.gpu.tuning import Tuning, tuning_of


def test_tiles_of_wide_rows_have_no_more_bytes_than_those_that_were_measured():
    whole = Tuning(132).whole
    for row_bytes in (32, 128, 256, 512, 1024, 2048):
        sizes = whole.of_rows(row_bytes)
        assert sizes.tile * row_bytes <= max(whole.tile * 256, 16 * row_bytes) and sizes.tile >= 16
    assert whole.of_rows(256) == whole and whole.of_rows(512).tile == whole.tile // 2


def test_the_interpreter_gets_its_own_sizes():
    tuning = tuning_of(torch.device("cpu"), 512)
    assert tuning.whole == tuning.weighing == tuning.picked and not tuning.assembly


def test_tiles_are_powers_of_two_whatever_the_channels():
    for row_bytes in (320, 384, 640, 1536):  # fp32 of 80 and 96 channels, and more
        tile = Tuning(132).whole.of_rows(row_bytes).tile
        assert tile & (tile - 1) == 0, row_bytes


def test_few_heads_of_a_batch_get_shorter_items_so_that_every_multiprocessor_has_one():
    tuning = Tuning(132)
    for size in (tuning.whole, tuning.ragged, tuning.weighing):
        few = tuning.among(size, 2 * 8)
        assert few.chunk < tuning.among(size, 8 * 8).chunk == size.chunk and few.launch == size.launch
