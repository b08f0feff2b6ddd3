"""Times the kernels of one layer over distinct layers' buffers, and the projections, by block size: what runtime/sparsec_runtime/gpu/tuning.py is set from."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "runtime")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from sparsec_runtime.gpu.blocks import tile_of  # noqa: E402
from sparsec_runtime.gpu.kernels.project import project  # noqa: E402
from sparsec_runtime.gpu.tuning import AttentionSizes, Tuning  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

from sparsec.bench.ceiling import ceiling  # noqa: E402
from sparsec.pipeline import Compilation, load_manager  # noqa: E402

H, G, D, PAGE = 8, 4, 128, 16
DENSE = (  # chunk, tile, warps, stages, programs of a multiprocessor: few take items in turn, many one each, as multiprocessors become free
    *((1024, 64, 4, 2, programs) for programs in (4, 8, 16)), *((512, 64, 4, 2, programs) for programs in (4, 16, 32)),
    (2048, 64, 4, 2, 4), (2048, 64, 4, 2, 8), (1024, 64, 4, 3, 3), (1024, 64, 4, 3, 16),
    *((1024, 64, 4, 5, programs) for programs in (2, 3, 16)), (512, 64, 4, 5, 3), (512, 64, 4, 5, 32), (1024, 64, 4, 7, 2), (1024, 64, 4, 7, 16),
    (1024, 32, 4, 5, 4), (1024, 32, 4, 5, 16), (1024, 32, 4, 7, 4), (1024, 32, 4, 7, 16), (1024, 128, 8, 2, 2), (1024, 128, 8, 2, 16),
    (1024, 128, 8, 5, 1), (1024, 128, 8, 5, 16), (1024, 64, 8, 2, 4), (1024, 64, 8, 2, 16), (1024, 64, 2, 2, 4), (1024, 64, 2, 2, 16),
)  # fmt: skip


OTHER_HEADS = ((8, 4, 128), (3, 3, 64), (32, 1, 80), (4, 2, 256))  # KV heads, query heads of each, channels
OTHER_SIZES = (
    (2048, 64, 4, 2, 8), (2048, 32, 4, 2, 8), (2048, 32, 2, 2, 8), (2048, 32, 2, 2, 16), (2048, 32, 2, 3, 8), (2048, 64, 2, 2, 8), (2048, 16, 2, 2, 8),
    (2048, 16, 1, 2, 16), (2048, 32, 1, 2, 8),
)  # fmt: skip


TOLD = ((1024, 64, 2, 2, 4), (1024, 64, 2, 2, 8), (2048, 64, 2, 2, 4), (2048, 64, 2, 2, 8), (1024, 64, 4, 2, 8), (2048, 64, 4, 2, 8), (2048, 64, 2, 3, 8))
MASS = ((512, 4, 8), (512, 2, 8), (256, 2, 16), (256, 4, 16), (1024, 4, 8), (1024, 8, 4))  # tile, warps, programs of a multiprocessor


def timed(run, replays: int = 10) -> float:
    """Median milliseconds of one captured replay."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(replays + 3):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times[3:])[replays // 2]


@dataclass(frozen=True)
class Layers:
    """Buffers of attention in made-up layers: k, v [layer, unit, PAGE, channel] bf16; q, out [row, query head, channel] bf16; lse [row, query head] fp32.

    table [row, page] int32 names a row's pages, in a random order; held [row] int32: rows to read.
    """

    k: torch.Tensor
    v: torch.Tensor
    q: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    table: torch.Tensor
    held: torch.Tensor

    @classmethod
    def made(cls, layers: int, rows: int, tokens: int, held: int | None = None, heads: tuple[int, int, int] = (H, G, D)) -> Layers:
        """Room for `tokens` tokens of each of `rows` requests, all of them held unless said; heads: KV heads, query heads of each, channels."""
        h, g, d = heads
        pages = rows * tokens // PAGE
        k = torch.randn(layers, (pages + 1) * h, PAGE, d, device="cuda", dtype=torch.bfloat16)
        v = torch.randn_like(k)
        q = torch.randn(rows, h * g, d, device="cuda", dtype=torch.bfloat16)
        table = (torch.randperm(pages, device="cuda") + 1).int().view(rows, -1)
        lengths = torch.full((rows,), tokens if held is None else held, device="cuda", dtype=torch.int32)
        return cls(k, v, q, torch.empty_like(q), torch.empty(rows, h * g, device="cuda"), table, lengths)

    def of(self, layer: int) -> tuple[torch.Tensor, ...]:
        """What attention in a layer reads, in the order of its kernel's arguments: q, k, v, table, held."""
        return self.q, self.k[layer], self.v[layer], self.table, self.held


def parts(items: int, g: int = G, d: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the output and the lse of work items, of g query heads of d channels each."""
    return torch.empty(items, g, d, device="cuda"), torch.empty(items, g, device="cuda")


def attention(rows: int, tokens: int, picked: int, sweep: list[tuple[int, int, int, int, int]]) -> None:
    """Microseconds a layer of split attention and merge; layers enough for 1 GB."""
    kernels = load_manager(Compilation.load("quest")).decode_kernels()
    pages = rows * tokens // PAGE
    layers = max(2, min(8, int(4e9 // (pages * H * PAGE * D * 4))))
    made = Layers.made(layers, rows, tokens, picked or tokens)
    chosen = torch.stack([torch.stack([torch.randperm(tokens // PAGE, device="cuda")[: max(1, picked // PAGE)].sort().values for _ in range(H)]) for _ in range(rows)]).int()
    read = rows * (picked or tokens) * H * D * 4
    found = []
    for chunk, tile, warps, stages, programs in sweep:
        items = rows * H * -(-(picked or tokens) // chunk)
        part, part_lse = parts(items)
        ep = 1 << (rows - 1).bit_length()

        def run() -> None:
            for layer in range(layers):
                attend = kernels.attend_pages if picked else kernels.attend_rows
                choice = {"pages_ptr": chosen, "pages_row": chosen.stride(0), "pages_head": chosen.stride(1)} if picked else {}
                attend[(min(items, programs * 132),)](
                    *made.of(layer), part_ptr=part, lse_ptr=part_lse, scale2=0.1275, table_row=made.table.stride(0), **choice,
                    entries=rows, EP=ep, H=H, G=G, GP=16, D=D, DP=D, PAGE=PAGE, CHUNK=chunk, TILE=tile, STAGES=stages, EXACT=False, num_warps=warps,
                )  # fmt: skip
                kernels.merge_chunks[(rows, H * G)](
                    part, part_lse, made.held, made.out, made.lse, entries=rows, EP=ep, H=H, G=G, D=D, DP=D, CHUNK=chunk, TILE=32, num_warps=4
                )

        try:
            us = timed(run) / layers * 1e3
        except RuntimeError as error:
            print("skipped", (chunk, tile, warps, stages, programs), str(error)[:80])
            continue
        found.append((round(us, 1), round(read / us / 1e6, 3), (chunk, tile, warps, stages, programs)))
    for row in sorted(found)[:6]:
        print(f"{rows} x {tokens} picked {picked}:", json.dumps(row), flush=True)
    print("   worst", json.dumps(max(found)), flush=True)


def dense(
    rows: int, tokens: int, sizes: tuple[tuple[int, int, int, int, int], ...], ceiling: float, heads: tuple[int, int, int] = (H, G, D)
) -> list[tuple[float, tuple[int, int, int, int, int]]]:  # fmt: skip
    """Attention alone over all rows, in the grid that a step gives it, as a share of the bandwidth of `ceiling`; the fastest first. Outputs are compared.

    heads: KV heads, query heads of each, channels.
    """
    H, G, D = heads
    kernels = load_manager(Compilation.load("dense")).decode_kernels()
    layers = 3
    made = Layers.made(layers, rows, tokens, heads=heads)
    common = {"entries": rows, "EP": tile_of(rows), "H": H, "G": G, "D": D, "DP": tile_of(D)}
    found, first = [], None
    for size in sizes:
        chunk, tile, warps, stages, programs = size
        items = rows * H * (17 + (tokens + 288) // (chunk // 2))
        part, part_lse = parts(items, G, D)

        def run(chunk=chunk, tile=tile, warps=warps, stages=stages, programs=programs, items=items, part=part, part_lse=part_lse) -> None:
            for layer in range(layers):
                kernels.attend_rows[(min(items, programs * 132),)](
                    *made.of(layer), part_ptr=part, lse_ptr=part_lse, scale2=0.1275, table_row=made.table.stride(0), **common, GP=tile_of(G),
                    PAGE=PAGE, CHUNK=chunk, TILE=tile, STAGES=stages, EXACT=False, num_warps=warps,
                )  # fmt: skip

        try:
            us = timed(run, 15) / layers * 1e3
        except (RuntimeError, OutOfResources) as error:
            print("skipped", size, str(error)[:80], flush=True)
            continue
        kernels.merge_chunks[(rows, H * G)](part, part_lse, made.held, made.out, made.lse, **common, CHUNK=chunk, TILE=32, num_warps=1)
        first = made.out.float().clone() if first is None else first
        apart = float((made.out.float() - first).norm() / first.norm())
        found.append((us, size))
        share = rows * tokens * H * D * 4 / us * 1e6 / ceiling
        print(f"dense {rows} x {tokens}, heads {heads}, chunk, tile, warps, stages, programs {size}: {us:.1f} us, {share:.4f} of the ceiling, apart {apart:.1e}", flush=True)
    return sorted(found)


def told(rows: int, tokens: int) -> None:
    """Attention that tells its logits, their merge, and the mass that is added to a state, by the sizes of each; beside attention of `dense` and its merge."""
    kernels, tuning, layers = load_manager(Compilation.load("h2o", params={"reduce": "sum"})).decode_kernels(), Tuning(132), 3
    made = Layers.made(layers, rows, tokens)
    state, logits = torch.zeros(made.k.shape[:3], device="cuda"), torch.empty(rows, H * G, tokens, device="cuda")
    items = rows * H * (17 + tokens // 256)
    part, part_lse = parts(items)
    common = {"entries": rows, "EP": tile_of(rows), "H": H, "G": G}

    def attended(size: AttentionSizes, tells: bool) -> float:
        kernel, options = (kernels.attend_rows_and_tell, {"logits_ptr": logits, "logits_row": tokens}) if tells else (kernels.attend_rows, {})

        def run() -> None:
            for layer in range(layers):
                kernel[(min(items, size.programs * 132),)](
                    *made.of(layer), part_ptr=part, lse_ptr=part_lse, scale2=0.1275, table_row=made.table.stride(0), **options, **common,
                    GP=16, D=D, DP=D, PAGE=PAGE, CHUNK=size.chunk, TILE=size.tile, STAGES=size.stages, EXACT=False, num_warps=size.warps,
                )  # fmt: skip
                kernels.merge_chunks[(rows, H * G)](part, part_lse, made.held, made.out, made.lse, **common, D=D, DP=D, CHUNK=size.chunk, TILE=32, num_warps=1)

        return timed(run) / layers * 1e3

    def added(tile: int, warps: int, programs: int) -> float:
        def run() -> None:
            for layer in range(layers):
                kernels.add_mass[(programs * 132,)](
                    logits, made.lse, made.table, made.held, state[layer], logits_row=tokens, table_row=made.table.stride(0), **common, PAGE=PAGE, TILE=tile,
                    num_warps=warps,
                )  # fmt: skip

        return timed(run) / layers * 1e3

    plain = attended(tuning.whole, False)
    print(f"{rows} x {tokens}: dense {plain:.1f} us", flush=True)
    first = [(attended(AttentionSizes(*size), True), size) for size in TOLD]
    then = [(added(*size), size) for size in MASS]
    for us, size in sorted(first):
        print(f"   {us:7.1f} us, {us / plain:.3f} of dense: logits told, chunk, tile, warps, stages, programs {size}", flush=True)
    for us, size in sorted(then):
        print(f"   {us:7.1f} us, {us / plain:.3f} of dense: mass, tile, warps, programs {size}", flush=True)


def projections() -> None:
    shapes = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336), "lm_head": (49152, 4096)}
    for name, (n, k) in shapes.items():
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(max(2, int(1.5e9 // (n * k * 2))))]
        for m in (1, 2, 8, 22, 64):
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            ms = timed(lambda: [F.linear(x, w) for w in weights]) / len(weights)
            print(f"{name} {n} x {k} M {m}: {ms * 1e3:.1f} us, {n * k * 2 / ms / 1e9:.2f} TB/s", flush=True)


def projection_tiles() -> None:
    for name, (n, k) in {"qkv": (6144, 4096), "out": (4096, 4096), "down": (4096, 14336), "gate_up": (28672, 4096)}.items():
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / 64 for _ in range(max(2, int(1.5e9 // (n * k * 2))))]
        for m in (8, 22, 64):
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(8, m, n, device="cuda")
            bm = max(16, 1 << (m - 1).bit_length())
            found = []
            for bn, bk, stages, warps, splits in itertools.product((16, 32, 64), (128, 256), (3, 4, 6), (4, 8), (1, 2, 4)):
                if (bn + bm) * bk * 2 * stages > 220_000 or (splits > 1) != (name in ("out", "down")) or k // splits % bk:
                    continue

                def run(bn=bn, bk=bk, stages=stages, warps=warps, splits=splits) -> None:
                    for w in weights:
                        project[(n // bn, splits)](x, w, w, out, m, n, DEPTH=k, BM=bm, BN=bn, BK=bk, SPLITS=splits, BIAS=False, STAGES=stages, num_warps=warps)

                try:
                    us = timed(run, 5) / len(weights) * 1e3
                except RuntimeError as error:
                    print("skipped", bn, bk, stages, warps, str(error)[:60])
                    continue
                error = ((out[:splits].sum(0) - F.linear(x, weights[-1]).float()).norm() / out[:splits].sum(0).norm()).item()
                found.append((round(us, 2), round(n * k * 2 / us / 1e6, 2), (bn, bk, stages, warps, splits), round(error, 5)))
            print(name, m, json.dumps(sorted(found)[:3]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=("attention", "dense", "heads", "told", "picked", "projections", "tiles"))
    args = parser.parse_args()
    if "dense" in args.what:
        measured = ceiling(torch.device("cuda"))
        print("TB/s:", {name: round(rate / 1e12, 3) for name, rate in measured.items()}, flush=True)
        fastest = [size for _, size in dense(8, 32768, DENSE, measured["best"])[:4]]
        for rows, tokens in ((8, 8192), (64, 8192), (2, 131072)):
            dense(rows, tokens, (DENSE[0], *fastest), measured["best"])
    if "heads" in args.what:
        best = ceiling(torch.device("cuda"))["best"]
        for heads in OTHER_HEADS:
            dense(max(1, 64 // heads[0]), 32768 * D // heads[2] // 256 * 256, OTHER_SIZES, best, heads)
    if "told" in args.what:
        for rows, tokens in ((8, 8192), (8, 32768)):
            told(rows, tokens)
    if "projections" in args.what:
        projections()
    if "tiles" in args.what:
        projection_tiles()
    if "attention" in args.what:
        for rows, tokens in ((8, 32768), (8, 8192), (2, 131072), (64, 8192)):
            attention(rows, tokens, 0, list(itertools.product((512, 1024), (64, 128), (4,), (2, 3, 4), (1, 2, 3, 4))))
    if "picked" in args.what:
        attention(8, 32768, 2048, list(itertools.product((64, 128, 256), (32, 64), (2, 4), (2, 3), (2, 4))))


if __name__ == "__main__":
    main()
