"""The page axis: `page_size` consecutive entries of the token axis, the last page padded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .reduce import masked_max, masked_mean, masked_min, masked_sum


def split_pages(x: Tensor, page_size: int, axis: int = -1) -> Tensor:
    """The token axis [token] as [page, slot], padded with zeros (False)."""
    axis = axis % x.ndim
    short = -x.shape[axis] % page_size
    if short:
        after = x.ndim - 1 - axis
        x = F.pad(x, (0, 0) * after + (0, short))
    return x.unflatten(axis, (-1, page_size))


def pages_to_tokens(pages: Tensor, page_size: int, tokens: int) -> Tensor:
    """A page set [..., page] as a token set [..., token]; the caller intersects with `valid`."""
    return pages.repeat_interleave(page_size, dim=-1)[..., :tokens]


def page_any(mask: Tensor, page_size: int) -> Tensor:
    """Pages that a token set touches."""
    return split_pages(mask, page_size).any(-1)


def open_page(members: Tensor, page_size: int) -> Tensor:
    """The page [..., page] that holds the last member (each query's own row, where members are the rows that it sees)."""
    tokens = torch.arange(members.shape[-1], device=members.device)
    newest = torch.where(members, tokens, -1).amax(-1, keepdim=True)
    pages = torch.arange(-(-members.shape[-1] // page_size), device=members.device)
    return (pages == newest // page_size) & (newest >= 0)


def page_sum(x: Tensor, members: Tensor, page_size: int) -> Tensor:
    """x [row, kv_head, token, ...] summed per page over members [row, kv_head|1, token] -> [row, kv_head, page, ...]."""
    return masked_sum(*_paged(x, members, page_size), 3)


def page_mean(x: Tensor, members: Tensor, page_size: int) -> Tensor:
    return masked_mean(*_paged(x, members, page_size), 3)


def page_max(x: Tensor, members: Tensor, page_size: int) -> Tensor:
    return masked_max(*_paged(x, members, page_size), 3)


def page_min(x: Tensor, members: Tensor, page_size: int) -> Tensor:
    return masked_min(*_paged(x, members, page_size), 3)


def _paged(x: Tensor, members: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    values = split_pages(x, page_size, axis=2)
    mask = split_pages(members, page_size)
    return values, mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim))
