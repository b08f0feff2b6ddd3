"""Where rows live: paged arrays, streams of pages with one table, and the stored K or V of one zone.

Everything is addressed in units: one page of one KV head of one layer. A change of table scope changes only which unit a table entry names,
so every gather and scatter below is the same code for all scopes. Knows no hooks and no attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from .codecs import Quantised, dequantise, place_of, quantise, unpack
from .gpu.transfer import sent
from .layout import WORD_BITS, Codec, LayoutError, Scope
from .memory import NULL_PAGE, MemoryPool
from .tables import PageTable, by_scope, pages_for, stack, table_rows


class PagedArray:
    """One tensor over the units of a stream: [layer or 1, unit, line, *inner]; a line is a row, a word of rows or a block of rows."""

    def __init__(self, geometry: Geometry, lines: int, inner: tuple[int, ...], dtype: torch.dtype) -> None:
        self.lines = lines
        copies = geometry.layers if geometry.scope == "shared" else 1
        units = geometry.units_per_layer
        self.data = torch.zeros((copies, units, lines, *inner), dtype=dtype, device=geometry.device)

    @property
    def unit_bytes(self) -> int:
        return self.data[0, 0].numel() * self.data.element_size()

    def with_layers_as_rows(self) -> PagedArray:
        """The same memory as of one layer."""
        made = copy(self)
        made.data = self.data.flatten(0, 1)[None]
        return made

    def of(self, layer: int) -> Tensor:
        """[unit, line, *inner] that the unit numbers of a layer index."""
        return self.data[layer if self.data.shape[0] > 1 else 0]

    def flat(self, layer: int) -> Tensor:
        """[unit * line, *inner]"""
        return self.of(layer).flatten(0, 1)

    def gather(self, layer: int, units: Tensor) -> Tensor:
        """Whole pages: units [row, kv_head, page] -> [row, kv_head, page * line, *inner]."""
        found = self.of(layer).index_select(0, units.flatten())
        return found.reshape(*units.shape[:2], units.shape[2] * self.lines, *self.data.shape[3:])


class Geometry:
    """The shape that the arrays of one stream share."""

    def __init__(self, scope: Scope, layers: int, heads: int, page_size: int, tokens: int, device: torch.device) -> None:
        self.scope, self.layers, self.heads, self.page_size, self.device = scope, layers, heads, page_size, device
        # A head page holds one head only: the same memory makes layers * heads times as many of them.
        self.pages = int(pages_for(np.int64(tokens), page_size)) * table_rows(scope, layers, heads)

    @property
    def units_per_page(self) -> int:
        return self.layers * self.heads // table_rows(self.scope, self.layers, self.heads)

    @property
    def units_per_layer(self) -> int:
        """Units of one layer copy, the null page included."""
        return (self.pages + 1) * (1 if self.scope == "head" else self.heads)


class Stream:
    """Arrays whose rows always move together, with one pool of pages; every request has one table in it."""

    def __init__(self, name: str, geometry: Geometry) -> None:
        self.name, self.geometry = name, geometry
        self.pool = MemoryPool(name, geometry.pages)
        self.payload: list[PagedArray] = []  # K and V, codes, scales
        self.attached: list[PagedArray] = []  # pos, states, summaries

    def array(self, lines_per_page: int, inner: tuple[int, ...], dtype: torch.dtype, payload: bool) -> PagedArray:
        made = PagedArray(self.geometry, lines_per_page, inner, dtype)
        (self.payload if payload else self.attached).append(made)
        return made

    def table(self) -> PageTable:
        return PageTable(table_rows(self.geometry.scope, self.geometry.layers, self.geometry.heads))

    def pages_wanted(self, counts: np.ndarray) -> np.ndarray:
        """Pages [table_row] for rows [layer, kv_head]."""
        return pages_for(by_scope(counts, self.geometry.scope), self.geometry.page_size)

    def page_bytes(self, arrays: Sequence[PagedArray]) -> int:
        return self.geometry.units_per_page * sum(array.unit_bytes for array in arrays)


class Addresses:
    """The tables [row, table_row, index] int64 of one batch in one stream, on the device, as unit and slot numbers per layer."""

    def __init__(self, stream: Stream, table: Tensor) -> None:
        self.stream, self.table = stream, table
        self._geometry = stream.geometry
        self._units: dict[int, Tensor] = {}
        self._slots: dict[int, Tensor] = {}

    @classmethod
    def of_tables(cls, stream: Stream, tables: list[PageTable]) -> Addresses:
        return cls(stream, sent(stack(tables), stream.geometry.device))

    @property
    def capacity(self) -> int:
        """Rows that the longest table can hold."""
        return self.table.shape[-1] * self._geometry.page_size

    def units(self, layer: int) -> Tensor:
        """Unit numbers [row, kv_head, page]; in the shared scope one tensor serves all layers."""
        key = 0 if self._geometry.scope == "shared" else layer
        if key not in self._units:
            self._units[key] = self._of_layer(key)
        return self._units[key]

    def slots(self, layer: int) -> Tensor:
        """Flat slot numbers [row, kv_head, page * slot]: row r of a head is entry r."""
        key = 0 if self._geometry.scope == "shared" else layer
        if key not in self._slots:
            within = torch.arange(self._geometry.page_size, device=self.table.device)
            self._slots[key] = (self.units(layer)[..., None] * self._geometry.page_size + within).flatten(-2)
        return self._slots[key]

    def at(self, layer: int, rows: Tensor) -> Tensor:
        """Flat slot numbers of rows [row, kv_head, n]; rows beyond the tables give some slot and must be masked."""
        slots = self.slots(layer)
        return slots.gather(-1, rows.expand(*slots.shape[:2], rows.shape[-1]).clamp(0, slots.shape[-1] - 1))

    def _of_layer(self, layer: int) -> Tensor:
        heads = self._geometry.heads
        if self._geometry.scope == "head":
            return self.table.unflatten(1, (-1, heads))[:, layer]
        return self.table[:, layer, None] * heads + torch.arange(heads, device=self.table.device)[:, None]


def write(array: PagedArray, layer: int, slots: Tensor, values: Tensor, valid: Tensor | None) -> None:
    """values [row, kv_head, n, *inner] to flat line numbers [row, kv_head, n]; where they are not valid (None: they all are), to the null page, which nobody reads."""
    target = array.flat(layer)
    target[_or_nowhere(slots, valid).reshape(-1)] = values.reshape(-1, *values.shape[3:]).to(target.dtype)


def _or_nowhere(slots: Tensor, valid: Tensor | None) -> Tensor:
    """Line numbers, those of the null page where they are not valid: a mask would have to be read to count them."""
    return slots if valid is None else torch.where(valid, slots, NULL_PAGE)


def pick(values: Tensor, rows: Tensor) -> Tensor:
    """values [row, kv_head, token, *inner] at rows [row, kv_head, n] of the token axis."""
    index = rows.clamp(0, max(0, values.shape[2] - 1))
    if values.ndim == 3:
        return values.gather(2, index)
    return values.gather(2, index[..., None].expand(*index.shape, values.shape[3]))


class Pieces:
    """Rows [kv_head, token, channel] of one request that are there already, as attention takes them: a piece at a time."""

    def __init__(self, rows: Tensor) -> None:
        self._rows, self.tokens = rows, rows.shape[1]

    def of(self, first: int, last: int) -> Tensor:
        """[kv_head, last - first, channel]; rows of a head follow each other."""
        return self._rows[:, first:last]


class PagedPieces(Pieces):
    """Rows that lie in pages: a piece is gathered when it is asked for, so that none is cut out of a copy of all rows, and copied again."""

    def __init__(self, array: PagedArray, layer: int, units: Tensor, tokens: int) -> None:
        self._array, self._layer, self._units, self.tokens = array, layer, units, tokens

    def of(self, first: int, last: int) -> Tensor:
        """Contiguous where the piece begins and ends with a page."""
        size = self._array.lines
        begin, end = first // size, -(-last // size)
        pages = self._array.gather(self._layer, self._units[None, :, begin:end])[0]
        return pages[:, first - begin * size : last - begin * size]


class RawStore:
    """K or V as it is, one line per row."""

    def __init__(self, stream: Stream, head_dim: int, dtype: torch.dtype) -> None:
        self.stream = stream
        self._rows = stream.array(stream.geometry.page_size, (head_dim,), dtype, payload=True)

    def with_layers_as_rows(self) -> RawStore:
        made = copy(self)
        made._rows = self._rows.with_layers_as_rows()
        return made

    @property
    def rows(self) -> PagedArray:
        return self._rows

    def pool(self, layer: int) -> Tensor:
        """[unit, slot, channel]: what kernels read and write."""
        return self._rows.of(layer)

    def read(self, at: Addresses, layer: int, width: int) -> Tensor:
        """[row, kv_head, width, channel], a copy; beyond a row's count lies what the page held before, which may be no number."""
        return self._rows.gather(layer, at.units(layer))[:, :, :width]

    def pieces(self, at: Addresses, layer: int, tokens: int) -> Pieces:
        """The first rows of the only request of a batch."""
        return PagedPieces(self._rows, layer, at.units(layer)[0], tokens)

    def append(self, at: Addresses, layer: int, rows: Tensor, values: Tensor, valid: Tensor | None) -> None:
        """values [row, kv_head, n, channel] become rows [row, kv_head, n]."""
        write(self._rows, layer, at.at(layer, rows), values, valid)

    def compact(self, at: Addresses, layer: int, source: Tensor, rows: Tensor, valid: Tensor | None) -> None:
        """Rows `source` become rows `rows`, both [row, kv_head, n]: all are read before any is written."""
        kept = self._rows.flat(layer)[at.at(layer, source)]
        write(self._rows, layer, at.at(layer, rows), kept, valid)


class PackedStore:
    """K or V as codes of a group quantiser: words of 16 bits (codecs.py), scales and minima in the model's dtype.

    words [unit, page / codes of a word, channel]; scales and minima [unit, block, channel] along tokens, [unit, block, slot] along channels.
    """

    def __init__(self, stream: Stream, codec: Codec, head_dim: int, dtype: torch.dtype) -> None:
        self.stream, self.codec = stream, codec
        page = stream.geometry.page_size
        self._along_tokens = codec.along == "t"
        if not self._along_tokens and head_dim % codec.block:
            fitting = ", ".join(str(size) for size in (4, 8, 16, 32, 64, 128) if head_dim % size == 0)
            raise LayoutError(f"blocks of {codec.block} channels do not divide this model's {head_dim} channels: choose one of {fitting}")
        blocks, inner = (page // codec.block, head_dim) if self._along_tokens else (head_dim // codec.block, page)
        self._words = stream.array(page * codec.bits // WORD_BITS, (head_dim,), torch.int16, payload=True)
        self._scale = stream.array(blocks, (inner,), dtype, payload=True)
        self._minimum = stream.array(blocks, (inner,), dtype, payload=True) if codec.zero else None
        self._rows_per_line = codec.block if self._along_tokens else 1

    def with_layers_as_rows(self) -> PackedStore:
        made = copy(self)
        made._words, made._scale = self._words.with_layers_as_rows(), self._scale.with_layers_as_rows()
        made._minimum = None if self._minimum is None else self._minimum.with_layers_as_rows()
        return made

    @property
    def arrays(self) -> tuple[PagedArray, PagedArray, PagedArray | None]:
        """Words, scales and minima: what kernels read and write."""
        return self._words, self._scale, self._minimum

    def stored(self, at: Addresses, layer: int, width: int) -> Quantised:
        """Codes and scales of the first `width` rows (rounded up to whole blocks)."""
        lines = -(-width // self._rows_per_line)
        units = at.units(layer)
        return Quantised(
            unpack(self._words.gather(layer, units), self.codec.bits)[:, :, : lines * self._rows_per_line],
            self._groups(self._scale, layer, units)[:, :, :lines],
            None if self._minimum is None else self._groups(self._minimum, layer, units)[:, :, :lines],
        )

    def read(self, at: Addresses, layer: int, width: int) -> Tensor:
        return dequantise(self.stored(at, layer, width), self.codec)[:, :, :width]

    def append(self, at: Addresses, layer: int, rows: Tensor, values: Tensor, valid: Tensor | None) -> None:
        """Along tokens, rows begin at a multiple of the block and are valid in whole blocks."""
        short = -values.shape[2] % self._rows_per_line
        assert short == 0, f"{values.shape[2]} rows are no whole blocks of {self._rows_per_line}"
        self._write(at, layer, rows, quantise(values, self.codec), valid)

    def compact(self, at: Addresses, layer: int, source: Tensor, rows: Tensor, valid: Tensor | None) -> None:
        """Moves codes and scales as they are: nothing is quantised twice. Along tokens only whole blocks can go."""
        lines = self._rows_per_line
        shift = (source - rows) % lines if valid is None else torch.where(valid, (source - rows) % lines, 0)
        assert not bool(shift.any()), f"eviction from a zone quantised along tokens must drop whole blocks of {lines} rows"
        slots = at.at(layer, source)
        groups = self._groups_at(slots[:, :, ::lines])
        kept = Quantised(
            self._codes_at(layer, slots),
            self._scale.flat(layer).view(-1)[groups],
            None if self._minimum is None else self._minimum.flat(layer).view(-1)[groups],
        )
        self._write(at, layer, rows, kept, valid)

    def _write(self, at: Addresses, layer: int, rows: Tensor, new: Quantised, valid: Tensor | None) -> None:
        slots, lines = at.at(layer, rows), self._rows_per_line
        groups = self._groups_at(_or_nowhere(slots, valid)[:, :, ::lines])
        self._scale.flat(layer).view(-1)[groups] = new.scale
        if self._minimum is not None and new.minimum is not None:
            self._minimum.flat(layer).view(-1)[groups] = new.minimum
        # Rows of one word are written at once: each adds the difference that it makes to its own bits (the sum wraps as it should).
        words, shifts = place_of(slots, self.codec.bits)
        change = (new.codes.to(torch.int32) - self._codes_at(layer, slots)) << shifts[..., None].to(torch.int32)
        change = change if valid is None else torch.where(valid[..., None], change, 0)
        self._words.flat(layer).index_put_((words,), change.to(torch.int16), accumulate=True)

    def _codes_at(self, layer: int, slots: Tensor) -> Tensor:
        """Codes [*slots, channel] int32 at flat slot numbers."""
        words, shifts = place_of(slots, self.codec.bits)
        found = self._words.flat(layer)[words].to(torch.int32)
        return (found >> shifts[..., None].to(torch.int32)) & (2**self.codec.bits - 1)

    def _groups(self, array: PagedArray, layer: int, units: Tensor) -> Tensor:
        """Scales or minima of whole pages: [row, kv_head, token block, channel], or [row, kv_head, slot, channel block]."""
        found = array.gather(layer, units)
        return found if self._along_tokens else found.unflatten(2, (-1, array.lines)).mT.flatten(2, 3)

    def _groups_at(self, slots: Tensor) -> Tensor:
        """Where the scales of flat slot numbers lie in the flat array: [*slots, channel], or [*slots, channel block]."""
        inner = self._scale.data.shape[-1]
        within = torch.arange(inner if self._along_tokens else self._scale.lines, device=slots.device)
        if self._along_tokens:
            return (slots // self.codec.block)[..., None] * inner + within
        return ((slots // inner)[..., None] * self._scale.lines + within) * inner + (slots % inner)[..., None]


Store = RawStore | PackedStore
