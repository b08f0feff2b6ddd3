"""Projections of few rows in interpreter mode, on tiny shapes: against plain ones in fp64, and whole decodes whose every projection is by our kernels."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import engine, ids_of_rows, with_kernels
from projections import assert_adds_to_the_residual, assert_gates, assert_projects, in_any_dtype, tiles_for
from sparsec_runtime.gpu.tuning import _HOPPER, ProjectionTiles, tuning_of

ROWS = (1, 2, 8, 16, 22, 64)
PLAIN = tuning_of(torch.device("cpu"))


def with_tiles(shape, tiles):
    return in_any_dtype(PLAIN, {shape: ((64, tiles),)})


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("shape", "tiles"), [((48, 64), ProjectionTiles(16, 16, 1, 4)), ((32, 96), ProjectionTiles(32, 32, 2, 4, splits=3))], ids=str)
def test_a_projection_equals_a_plain_one(rows, shape, tiles):
    """Whoever cannot add parts up gets one, whatever the tiles say."""
    assert_projects(with_tiles(shape, tiles), rows, shape, torch.float32, "cpu", sums=1e-5)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_the_next_norm_adds_up_the_parts_of_the_depth(rows, splits):
    shape = (48, 128)
    assert_adds_to_the_residual(with_tiles(shape, ProjectionTiles(16, 32, 1, 4, splits)), rows, shape, torch.float32, "cpu", sums=1e-5)


@pytest.mark.parametrize("rows", ROWS)
def test_gate_and_up_equal_plain_ones(rows):
    shape = (2 * 48, 64)
    assert_gates(with_tiles(shape, ProjectionTiles(16, 32, 1, 4)), rows, shape, torch.float32, "cpu", sums=1e-5)


@pytest.mark.parametrize(("most", "served"), [(2, False), (4, True)])
def test_more_rows_than_were_measured_go_to_the_library(most, served):
    tuning = in_any_dtype(PLAIN, {(48, 64): ((most, ProjectionTiles(16, 16, 1, 4)),)})
    assert_projects(tuning, 4, (48, 64), torch.float32, "cpu", sums=1e-5)
    assert tuning.used == ({(48, 64)} if served else set())


def test_every_committed_tile_divides_its_shape():
    for (width, depth), sizes in _HOPPER.items():
        assert all(width % tiles.outputs == 0 and depth % (tiles.splits * tiles.depth) == 0 for _, tiles in sizes), (width, depth)


def test_tiles_are_for_sixteen_bits_alone():
    tuning = replace(PLAIN, projections={(48, 64): ((4, ProjectionTiles(16, 16, 1, 4)),)})
    assert tuning.tiles_of(torch.empty(48, 64), 4) is None
    assert tuning.tiles_of(torch.empty(48, 64, dtype=torch.bfloat16), 4) is not None


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-qwen3"])
def test_decode_with_every_projection_by_our_kernels_gives_the_ids_of_the_eager_path(name):
    """One of the three has a bias, one a hidden width that is no power of two."""
    made, lengths, new = with_kernels(engine("dense", model=name)), (3, 17), 4
    tuning = in_any_dtype(made.graphs.forward.tuning, tiles_for(made.model.shape, side=16))
    made.graphs.forward = replace(made.graphs.forward, tuning=tuning)
    assert ids_of_rows(made, lengths, new) == ids_of_rows(engine("dense", model=name), lengths, new)
    assert tuning.used == set(tuning.projections) and len(tuning.used) == 4, "every projection of a layer is by our kernels"
