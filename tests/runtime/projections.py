"""The projections of a decode step as a forward launches them, over tiles of this repository, against plain ones in fp64, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import SimpleNamespace

import torch
from sparsec_runtime.gpu.forward import DecodeForward
from sparsec_runtime.gpu.tuning import ProjectionTiles, Tuning
from sparsec_runtime.models.shape import ModelShape
from torch import Tensor

FAR = 3  # rows behind those of the batch: no numbers before, and untouched


@dataclass(frozen=True, slots=True)
class AnyDtype(Tuning):
    """Takes its tiles for 32 bits too, which are neither measured nor served, but exact in interpreter mode. used: shapes of the weights that got tiles."""

    used: set[tuple[int, int]] = field(default_factory=set)

    def tiles_of(self, weight: Tensor, rows: int) -> ProjectionTiles | None:
        tiles = next((tiles for most, tiles in self.projections.get(tuple(weight.shape), ()) if rows <= most), None)
        if tiles is not None:
            self.used.add(tuple(weight.shape))
        return tiles


def in_any_dtype(tuning: Tuning, projections: Mapping[tuple[int, int], Sequence[tuple[int, ProjectionTiles]]]) -> AnyDtype:
    return AnyDtype(**{one.name: getattr(tuning, one.name) for one in fields(tuning)} | {"projections": projections})


def forward_of(tuning: Tuning, hidden: int, intermediate: int = 0) -> DecodeForward:
    """Nothing but its projections and norms."""
    model = SimpleNamespace(shape=SimpleNamespace(hidden=hidden, intermediate=intermediate, rms_eps=1e-6))
    nothing: tuple[bool, ...] = ()
    return DecodeForward(model, [], None, None, nothing, nothing, nothing, nothing, tuning, False, None)


def tiles_for(shape: ModelShape, side: int) -> dict[tuple[int, int], tuple[tuple[int, ProjectionTiles], ...]]:
    """For up to 16 rows of a tiny model, for every projection of a layer; those to the residual are split."""
    heads, kv = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    whole, two, four = (ProjectionTiles(side, side, 2, 4, splits) for splits in (1, 2, 4))
    tiles = {(heads + 2 * kv, shape.hidden): whole, (2 * shape.intermediate, shape.hidden): whole}
    tiles |= {(shape.hidden, heads): two, (shape.hidden, shape.intermediate): four}
    return {weight: ((16, one),) for weight, one in tiles.items()}


@contextmanager
def poisoned() -> Iterator[None]:
    """What torch allocates in here holds no numbers."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def given(rows: int, shape: tuple[int, int], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """x [row, depth], which other rows that are no numbers follow in memory; weight [width, depth] and bias [width]; outputs are near unit size."""
    width, depth = shape
    torch.manual_seed(rows + width + depth)
    x = torch.full((rows + FAR, depth), float("nan"), dtype=dtype, device=device)
    x[:rows].normal_()
    weight = torch.empty(shape, dtype=dtype, device=device).normal_(0, depth**-0.5)
    return x[:rows], weight, torch.randn(width, dtype=dtype, device=device)


def assert_projects(tuning: Tuning, rows: int, shape: tuple[int, int], dtype: torch.dtype, device: str, sums: float) -> None:
    """With bias and without. sums: how far fp32 sums may be from exact ones; half a unit of the dtype's last place comes on top."""
    x, weight, bias = given(rows, shape, dtype, device)
    made = forward_of(tuning, hidden=shape[0])
    plain = x.double() @ weight.double().T
    for added in (None, bias):
        with poisoned():
            found = made._project(x, weight, added)
        wanted = plain if added is None else plain + added.double()
        assert found.shape == wanted.shape and found.dtype == dtype
        _assert_near(found, wanted, 0.51 * torch.finfo(dtype).eps * wanted.abs() + sums)


def assert_adds_to_the_residual(tuning: Tuning, rows: int, shape: tuple[int, int], dtype: torch.dtype, device: str, sums: float) -> None:
    """The parts in fp32, and the residual and its norm once the norm has added them up."""
    x, weight, scale = given(rows, shape, dtype, device)
    made, tiles = forward_of(tuning, hidden=shape[0]), tuning.tiles_of(weight, rows)
    assert tiles is not None
    wanted, share = x.double() @ weight.double().T, shape[1] // tiles.splits
    with poisoned():
        parts = made._project_to_residual(x, weight, None)
    assert parts.shape == (tiles.splits, rows, shape[0]) and parts.dtype == torch.float32
    for n, part in enumerate(parts):
        cut = slice(n * share, (n + 1) * share)
        _assert_near(part, x[:, cut].double() @ weight[:, cut].double().T, sums)
    residual, normed = torch.full((2, rows + FAR, shape[0]), float("nan"), dtype=dtype, device=device)
    before = residual[:rows].normal_().double()
    made._norm(SimpleNamespace(x=residual, normed=normed, rows=rows), parts, scale)
    eps = torch.finfo(dtype).eps
    _assert_near(residual[:rows], before + wanted, 0.51 * eps * (wanted.abs() + (before + wanted).abs()) + sums)
    held = residual[:rows].double()
    normal = held * (held.square().mean(1, keepdim=True) + 1e-6).rsqrt() * scale.double()
    _assert_near(normed[:rows], normal, 1.1 * eps * normal.abs() + sums)
    assert residual[rows:].isnan().all() and normed[rows:].isnan().all(), "rows of nobody"


def assert_gates(tuning: Tuning, rows: int, shape: tuple[int, int], dtype: torch.dtype, device: str, sums: float) -> None:
    """silu(gate) * up; gate, silu and the product are rounded one after the other, and silu is nowhere steeper than 1.1."""
    x, weight, _ = given(rows, shape, dtype, device)
    width = shape[0] // 2
    active = torch.full((rows + FAR, width), float("nan"), dtype=dtype, device=device)
    forward_of(tuning, hidden=shape[1], intermediate=width)._gate(SimpleNamespace(normed=x, active=active[:rows], rows=rows), weight)
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=1)
    _assert_near(active[:rows], torch.nn.functional.silu(gate) * up, 2.1 * torch.finfo(dtype).eps * (gate * up).abs() + 8 * sums)
    assert active[rows:].isnan().all(), "rows of nobody"


def _assert_near(found: Tensor, wanted: Tensor, bound: Tensor | float) -> None:
    """Every element: a wrong one among millions does not show in a norm. NaN is near nothing."""
    off = (found.double() - wanted).abs() > bound
    far = off | found.isnan()
    assert not far.any(), f"{int(far.sum())} of {far.numel()} are wrong, first at {far.nonzero()[0].tolist()}: {found[far][:4].tolist()}, not {wanted[far][:4].tolist()}"
