"""Times exact ranking by the size of its parts, the choice of pages, and the choice and reading of single tokens: captured graphs over distinct buffers."""

from __future__ import annotations

import argparse
import itertools

from kernels import PAGE, D, G, H, parts, timed

import torch  # isort: skip
from sparsec_runtime.gpu.blocks import aligned  # isort: skip
from sparsec_runtime.gpu.ranking import part_of, rank_best, rank_grouped, rank_sampled, sampled_part  # isort: skip
from sparsec_runtime.gpu.tokens import list_tokens, place_tokens  # isort: skip
from sparsec_runtime.gpu.tuning import tuning_of  # isort: skip
from sparsec.pipeline import Compilation, load_manager  # isort: skip

PARTS = (4096, 8192, 16384)
SAMPLED = (1024, 2048, 4096, 8192)
BOUNDS = (  # pages of a step and of an item, for all heads; warps, stages, programs of a multiprocessor
    (8, 32, 4, 3, 2), (8, 64, 4, 5, 1), (8, 64, 4, 4, 1), (8, 64, 4, 3, 2), (8, 16, 4, 2, 4), (8, 16, 4, 1, 4), (8, 32, 4, 1, 4), (8, 64, 4, 2, 2), (8, 64, 8, 5, 1),
    (8, 32, 8, 3, 2),
)  # fmt: skip


def ints(rows: int, value: int) -> torch.Tensor:
    return torch.full((rows,), value, device="cuda", dtype=torch.int32)


def ranking(rows: int, entries: int, best: int, gate: str) -> None:
    """Lines of random scores, of five different ones, whose ties decide, and of scores that lie in clusters; by parts and by samples, checked against each other."""
    layers = 32 if rows * entries < 1 << 22 else 2
    draws = {
        "random": torch.randn, "ties": lambda *shape, device: torch.randint(5, shape, device=device).float(),
        "clusters": lambda *shape, device: torch.randn(*shape, device=device) + 3 * torch.randn(*shape[:-1], shape[-1] // 512, device=device).repeat_interleave(512, -1),
    }  # fmt: skip
    held, count = ints(rows, entries), ints(rows, best)
    for kind, draw in draws.items():
        score = draw(layers, rows, 1, entries, device="cuda")
        out, lists = torch.empty(rows, 1, best, device="cuda", dtype=torch.int32), []
        ways = {f"parts of {part}{' (part_of)' if part == part_of(entries, best) else ''}": (rank_best, {"part": part}) for part in PARTS}
        for part in SAMPLED:
            for sample in (part // 4, part // 2):
                name = f"sample of {sample}, parts of {part}{' (chosen)' if (part, sample * 2) == (sampled_part(rows, entries), part) else ''}"
                ways[name] = rank_sampled, {"part": part, "sample": sample}
        for name, (rank, options) in ways.items():
            us = timed(lambda rank=rank, options=options, score=score, out=out: [rank(x, held, count, out, **options) for x in score], 5) / layers * 1e3
            lists.append(out.clone())
            wrong = "" if torch.equal(lists[0], lists[-1]) else ", WRONG"
            print(f"rank {rows} x {entries}, best {best}, {kind}, {name}: {us:.1f} us{wrong}; gate {gate}", flush=True)


def pages(rows: int, count: int, gate: str) -> None:
    """Bounds of all pages by their sizes, and the ranking of each (row, head) by way and warps, each alone and cold: layers enough for 1 GB of bounds."""
    kernels = load_manager(Compilation.load("quest")).decode_kernels()
    layers = max(2, int(1e9 // (rows * count * H * D * 4)))
    low = torch.randn(layers, (rows * count + 1) * H, D, device="cuda", dtype=torch.bfloat16)
    high = low + torch.rand_like(low)
    q = torch.randn(rows, H * G, D, device="cuda", dtype=torch.bfloat16)
    table = (torch.randperm(rows * count, device="cuda") + 1).int().view(rows, -1)
    held, first, newest = ints(rows, count * PAGE), ints(rows, 0), ints(rows, 1)
    capacity = aligned(count + 20)  # as of a request that has tokens to come
    worth, multiprocessors = torch.empty(layers, rows, H, capacity, device="cuda"), tuning_of(q.device).multiprocessors
    found = {}
    for tile, chunk, warps, stages, programs in BOUNDS:
        best = torch.empty(layers, rows, H, aligned(-(-capacity // tile)), device="cuda")

        def run(tile=tile, chunk=chunk, warps=warps, stages=stages, programs=programs, best=best) -> None:
            for layer in range(layers):
                kernels.bound_pages[(min(rows * -(-capacity // chunk), programs * multiprocessors),)](
                    q, low[layer], high[layer], table, held, first, newest, worth[layer], best[layer], worth_row=capacity, best_row=best.shape[3],
                    table_row=table.stride(0), entries=rows, EP=16, H=H, HP=H, G=G, QP=H * G, D=D, DP=D, PAGE=PAGE, TILE=tile, CHUNK=chunk,
                    STAGES=stages, EXACT=False, num_warps=warps,
                )  # fmt: skip

        found[f"bounds: tile {tile} chunk {chunk} warps {warps} stages {stages} programs {programs}"] = us = timed(run, 7) / layers * 1e3
        print(f"pages {rows} x {count}, bounds, tile {tile} chunk {chunk} warps {warps} stages {stages} programs {programs}: {us:.2f} us", flush=True)
    chosen, number, ways = torch.empty(rows, H, 129, device="cuda", dtype=torch.int32), ints(rows, 128), {}
    for group in (8,):
        best = worth[..., : count // group * group].unflatten(3, (-1, group)).amax(4)
        best = torch.cat((best, torch.empty(*best.shape[:3], aligned(best.shape[3]) - best.shape[3], device="cuda")), 3)
        for warps in (4, 8, 16):
            ways[f"groups of {group}, {warps} warps"] = lambda n, best=best, group=group, warps=warps: rank_grouped(
                worth[n], best[n], held, number, chosen, unit=PAGE, group=group, grouped=True, warps=warps
            )
    for part in (1024, 2048, 4096, 16384):
        if part < 4 * capacity:
            ways[f"parts of {part}"] = lambda n, part=part: rank_best(worth[n], held, number, chosen, unit=PAGE, part=part)
    for part in (1024, 2048):
        ways[f"sample of {part // 2}, parts of {part}"] = lambda n, part=part: rank_sampled(worth[n], held, number, chosen, unit=PAGE, part=part)
    lists = {}
    for name, way in ways.items():
        way(0)
        lists[name] = chosen[..., :128].clone()
        us = timed(lambda way=way: [way(n) for n in range(layers)], 7) / layers * 1e3
        same = all(torch.equal(lists[name], other) for other in lists.values())
        print(f"pages {rows} x {count}, ranking, {name}: {us:.2f} us{'' if same else ', WRONG'}", flush=True)
        found[f"ranking: {name}"] = us
    least = [min((us, name) for name, us in found.items() if name.startswith(kind)) for kind in ("bounds", "ranking")]
    print(f"pages {rows} x {count}, best: {sum(us for us, _ in least):.2f} us, gate {gate}: {least[0][1]}; {least[1][1]}", flush=True)


def tokens(rows: int, held: int, budget: int) -> None:
    """A list of tokens from one layer's logits, by share and by logit; then attention over such a list, without its merge and with it."""
    kernels = load_manager(Compilation.load("omnikv")).decode_kernels()
    first, newest, count, lengths = ints(rows, 4), ints(rows, 64), ints(rows, budget + 68), ints(rows, held)
    logits = 4 * torch.randn(8, rows, H * G, held, device="cuda")
    listed = torch.empty(rows, budget + 68, device="cuda", dtype=torch.int32)
    pool = rows * held // PAGE
    table = (torch.randperm(pool, device="cuda") + 1).int().view(rows, 1, -1)
    for shares in (True, False):
        us = timed(lambda shares=shares: [list_tokens(x, lengths, first, newest, count, listed, shares=shares) for x in logits]) / 8 * 1e3
        print(f"list {budget} of {rows} x {held}, shares {shares}: {us:.1f} us", flush=True)
    place_tokens(listed, count, table, PAGE)
    del logits
    layers = 8
    k = torch.randn(layers, (pool + 1) * H, PAGE, D, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    q = torch.randn(rows, H * G, D, device="cuda", dtype=torch.bfloat16)
    out, row_lse = torch.empty_like(q), torch.empty(rows, H * G, device="cuda")
    common = {"entries": rows, "EP": 16, "H": H, "G": G, "D": D, "DP": D}
    for chunk, tile, warps, stages, programs in itertools.product((128, 256, 512), (32, 64), (2, 4), (2, 3, 4), (4, 8)):
        items = rows * H * (17 + budget // (chunk // 2))
        part, lse = parts(items)

        def run(part=part, lse=lse, chunk=chunk, tile=tile, warps=warps, stages=stages, programs=programs) -> None:
            for layer in range(layers):
                kernels.attend_tokens[(programs * tuning_of(q.device).multiprocessors,)](
                    q, k[layer], v[layer], count, listed, part, lse, scale2=0.1275, tokens_row=listed.stride(0), **common, GP=16, PAGE=PAGE,
                    CHUNK=chunk, TILE=tile, STAGES=stages, EXACT=False, num_warps=warps,
                )  # fmt: skip
                kernels.merge_chunks[(rows, H * G)](part, lse, count, out, row_lse, **common, CHUNK=chunk, TILE=32, num_warps=4)

        us = timed(run) / layers * 1e3
        print(f"read {budget + 68} tokens x {rows}, chunk {chunk} tile {tile} warps {warps} stages {stages} programs {programs}: {us:.1f} us; gate 30", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=("ranking", "pages", "tokens"))
    args = parser.parse_args()
    if "ranking" in args.what:
        ranking(8, 32768, 2048, "25 us")
        ranking(256, 32768, 4096, "400 us")
        ranking(256, 131072, 4096, "1200 us")
    if "pages" in args.what:
        pages(1, 8192, "21 us")
        pages(8, 2048, "34 us")
        pages(2, 8192, "34 us")
    if "tokens" in args.what:
        tokens(8, 32768, 2048)


if __name__ == "__main__":
    main()
