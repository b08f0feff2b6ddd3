"""Split attention over pages against plain torch in fp64: ragged lengths, group sizes, head widths, dtypes, permuted pages, poisoned outputs."""

from __future__ import annotations

import pytest
import torch

from sparsec.pipeline import Compilation, load_manager

PAGE = 16
LENGTHS = (1, 15, 16, 17, 127, 128, 129, 2047, 2048, 3000, 17000, 0)
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1.5e-3, torch.float32: 2e-6}


def generated(method):
    """The decode kernels that the compiler wrote for a method."""
    return load_manager(Compilation.load(method)).decode_kernels()


def paged(lengths, heads, dim, dtype):
    """K, V pools [unit, slot, channel] and tables [row, 1, page] with pages in random order. What no row holds is no number: the rest of a last page, and a
    page that all unused entries of the tables name."""
    pages = [-(-n // PAGE) for n in lengths]
    order = torch.randperm(sum(pages), device="cuda").to(torch.int32) + 1
    nobody = sum(pages) + 1
    k, v = (torch.randn((nobody + 1) * heads, PAGE, dim, device="cuda", dtype=dtype) for _ in "kv")
    table = torch.full((len(lengths), 1, max(pages)), nobody, dtype=torch.int32, device="cuda")
    for row, places in enumerate(order.split(pages)):
        table[row, 0, : len(places)] = places
    for pool in (k, v):
        pool[nobody * heads :] = float("nan")
        for row, length in enumerate(lengths):
            if length % PAGE:
                pool[int(table[row, 0, length // PAGE]) * heads :][:heads, length % PAGE :] = float("nan")
    return k, v, table


def rows_of(pool, table, row, length, heads):
    units = table[row, 0].long()[:, None] * heads + torch.arange(heads, device="cuda")
    return pool[units].permute(1, 0, 2, 3).flatten(1, 2)[:, :length].double()


def test_rows_that_name_the_same_pages_read_the_same_rows():
    """One row begins as another, up to a whole page, and one is the beginning of it, up to the middle of a page."""
    kernels, dtype = generated("dense"), torch.bfloat16
    torch.manual_seed(1)
    heads, group, dim, lengths = 2, 4, 128, (3000, 2100, 1000)
    k, v, table = paged(lengths, heads, dim, dtype)
    table[1, 0, :100] = table[0, 0, :100]
    table[2, 0, :63] = table[0, 0, :63]
    q = torch.randn(3, heads * group, dim, device="cuda", dtype=dtype)
    held = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    part, lse = torch.full((3 * heads * 40, group, dim), float("nan"), device="cuda"), torch.full((3 * heads * 40, group), float("nan"), device="cuda")
    out, row_lse = torch.full_like(q, float("nan")), torch.full((3, heads * group), float("nan"), device="cuda")
    common = {"entries": 3, "EP": 16, "H": heads, "G": group, "D": dim, "DP": dim, "CHUNK": 1024}
    kernels.attend_rows[(97,)](
        q, k, v, table, held, part, lse, scale2=dim**-0.5 * 1.4426950408889634, table_row=table.stride(0),
        GP=16, PAGE=PAGE, TILE=64, STAGES=2, EXACT=False, **common,
    )  # fmt: skip
    kernels.merge_chunks[(3, heads * group)](part, lse, held, out, row_lse, TILE=32, **common)
    for row, length in enumerate(lengths):
        keys, values = (rows_of(pool, table, row, length, heads) for pool in (k, v))
        scores = torch.einsum("hgd,htd->hgt", q[row].double().view(heads, group, dim), keys) * dim**-0.5
        wanted = (scores.softmax(-1) @ values).flatten(0, 1)
        assert ((out[row].double() - wanted).norm() / wanted.norm()).item() < TOLERANCE[dtype], length


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 4, 128), (3, 1, 64), (2, 7, 80), (1, 16, 96), (2, 8, 256)])
def test_attention_equals_plain_attention_over_ragged_rows(heads, group, dim, dtype):
    kernels = generated("h2o")
    torch.manual_seed(heads * group + dim)
    k, v, table = paged(LENGTHS, heads, dim, dtype)
    rows = len(LENGTHS)
    q = torch.randn(rows, heads * group, dim, device="cuda", dtype=dtype)
    held = torch.tensor(LENGTHS, dtype=torch.int32, device="cuda")
    items = rows * heads * 40
    part = torch.full((items, group, dim), float("nan"), device="cuda")
    lse = torch.full((items, group), float("nan"), device="cuda")
    out, row_lse = torch.full_like(q, float("nan")), torch.full((rows, heads * group), float("nan"), device="cuda")
    logits = torch.full((rows, heads * group, max(LENGTHS)), float("nan"), device="cuda")
    scale = dim**-0.5
    padded = 1 << (dim - 1).bit_length()
    small = dtype == torch.float32 or dim == 256
    common = {"entries": rows, "EP": 128 if heads == 3 else 16, "H": heads, "G": group, "D": dim, "DP": padded, "CHUNK": 1024}
    kernels.attend_rows_and_tell[(97,)](
        q, k, v, table, held, part, lse, logits, scale2=scale * 1.4426950408889634, table_row=table.stride(0), logits_row=logits.shape[2],
        GP=16, PAGE=PAGE, TILE=32 if small else 64, STAGES=2, EXACT=dtype == torch.float32, **common,
    )  # fmt: skip
    kernels.merge_chunks[(rows, heads * group)](part, lse, held, out, row_lse, TILE=32, **common)
    for row, length in enumerate(LENGTHS):
        if length == 0:
            assert (out[row] == 0).all(), "a row that holds nothing attends to nothing"
            continue
        keys, values = (rows_of(pool, table, row, length, heads) for pool in (k, v))
        scores = torch.einsum("hgd,htd->hgt", q[row].double().view(heads, group, dim), keys) * scale
        wanted = (scores.softmax(-1) @ values).flatten(0, 1)
        error = ((out[row].double() - wanted).norm() / wanted.norm()).item()
        assert error < TOLERANCE[dtype], (length, error)
        shown = logits[row, :, :length].double() / 1.4426950408889634
        assert torch.allclose(shown, scores.flatten(0, 1), atol=2e-2 if dtype != torch.float32 else 1e-4), length
        assert torch.allclose(row_lse[row].double() / 1.4426950408889634, scores.logsumexp(-1).flatten(), atol=2e-2 if dtype != torch.float32 else 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_first_rows_are_asked_by_their_own_query(dtype):
    kernels = generated("streamingllm")
    torch.manual_seed(5)
    heads, group, dim, lengths, firsts = 2, 4, 64, (1, 17, 130, 2049, 700), (4, 4, 0, 70, 3)
    k, v, table = paged(lengths, heads, dim, dtype)
    rows = len(lengths)
    q, q_first = both = torch.randn(2, rows, heads * group, dim, device="cuda", dtype=dtype)
    held, first = (torch.tensor(x, dtype=torch.int32, device="cuda") for x in (lengths, firsts))
    part, lse = torch.empty(rows * heads * 40, group, dim, device="cuda"), torch.empty(rows * heads * 40, group, device="cuda")
    out, row_lse = torch.empty_like(q), torch.empty(rows, heads * group, device="cuda")
    scale = dim**-0.5
    common = {"entries": rows, "EP": 16 if dtype == torch.float32 else 128, "H": heads, "G": group, "D": dim, "DP": dim, "CHUNK": 1024}
    kernels.attend_rows[(97,)](
        q, k, v, table, held, first, part, lse, scale2=scale * 1.4426950408889634, table_row=table.stride(0), q_first=both.stride(0),
        GP=16, PAGE=PAGE, TILE=32 if dtype == torch.float32 else 64, STAGES=2, EXACT=dtype == torch.float32, **common,
    )  # fmt: skip
    kernels.merge_chunks[(rows, heads * group)](part, lse, held, first, out, row_lse, TILE=32, **common)
    for row, (length, n) in enumerate(zip(lengths, firsts)):
        keys, values = (rows_of(pool, table, row, length, heads) for pool in (k, v))
        asked = [torch.einsum("hgd,htd->hgt", x[row].double().view(heads, group, dim), keys) * scale for x in (q_first, q)]
        scores = torch.cat((asked[0][..., :n], asked[1][..., n:]), dim=-1)
        wanted = (scores.softmax(-1) @ values).flatten(0, 1)
        error = ((out[row].double() - wanted).norm() / wanted.norm()).item()
        assert error < TOLERANCE[dtype], (length, error)
