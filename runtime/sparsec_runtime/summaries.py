"""Summaries of pages, kept up to date by recomputing the pages whose rows changed. The equations are the generated manager's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from .resident import Resident
from .zones import Addresses, pick, write

Equation = Callable[["PageView"], Tensor]


class PageView:
    """Whole pages of each row and head, from the first that changed: what a summary's equation reads.

    The token axis holds pages * page_size entries; K, V, K_raw [row, kv_head, token, channel], pos and valid [row, kv_head, token].
    """

    def __init__(self, resident: Resident, first: np.ndarray, pages: int) -> None:
        self._resident, self._pages = resident, pages
        device = resident.step.device
        self.first = resident.step.on_device(first)[..., None]
        self.page_size = resident.storage.page_size
        self.order = self.first * self.page_size + torch.arange(pages * self.page_size, device=device)
        self.valid = self.order < resident.len[..., None]
        self.page_index = self.first + torch.arange(pages, device=device)
        self.page_valid = self.page_index * self.page_size < resident.len[..., None]

    def units(self, layer: int) -> Tensor:
        """The window's units: a PageView is read like the tables that it is a part of."""
        whole: Addresses = self._resident.step.addresses[self._resident.storage.row_stream.name]
        return pick(whole.units(layer), self.page_index)

    @property
    def layer(self) -> int:
        return self._resident.layer

    @property
    def V(self) -> Tensor:
        return self._payload("V")

    @property
    def K(self) -> Tensor:
        stored = self._payload("K")
        return stored if self._logical else self._turned(stored, self.order, 1)

    @property
    def K_raw(self) -> Tensor:
        stored = self._payload("K")
        return self._turned(stored, self.pos, -1) if self._logical else stored

    @property
    def pos(self) -> Tensor:
        positions = self._resident.storage.positions
        if positions is None:
            return self.order
        return positions.gather(self.layer, self.units(self.layer)).to(torch.int64)

    @property
    def _logical(self) -> bool:
        return self._resident.storage.layout.position == "logical"

    def _payload(self, part: str) -> Tensor:
        storage = self._resident.storage
        read = storage.stores[storage.newest_zone, part].read(self, self.layer, self._pages * self.page_size)
        return torch.where(self.valid[..., None], read, torch.zeros_like(read))

    def _turned(self, x: Tensor, positions: Tensor, direction: int) -> Tensor:
        rope = self._resident.storage.rope
        cos, sin = rope.cos_sin(positions)
        if direction < 0:
            cos, sin = cos / rope.scaling**2, -sin / rope.scaling**2
        return rope.rotate(x, cos, sin)


def refresh(resident: Resident, equations: Mapping[str, Equation], first_row: np.ndarray) -> None:
    """Recomputes every summary from the page of first_row [row, kv_head] to the last page, over the rows as they are stored now."""
    size = resident.storage.page_size
    first = first_row // size
    changed = (resident.rows - 1) // size - first + 1
    pages = int(changed.max())
    view = PageView(resident, first, pages)
    valid = None if (changed == pages).all() else view.page_valid
    for name, equation in equations.items():
        write(resident.storage.summaries[name][1], resident.layer, view.units(resident.layer), equation(view), valid)
