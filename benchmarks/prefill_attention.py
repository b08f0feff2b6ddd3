"""Attention of prompt chunks and the mass that it gives each row, on one GPU: TFLOP/s of useful work (no padding, no masked half), one JSON line each.

    python benchmarks/prefill_attention.py            chunks of 8K over 8K, 32K, 128K and of 2K over 32K: with cuDNN, by our kernel alone, and the mass
    python benchmarks/prefill_attention.py --window   what the newest 32 and 128 queries give each of 32K rows, by block size, launched and in a graph
    python benchmarks/prefill_attention.py --tiles    our kernel by block size, 8K over 32K
    python benchmarks/prefill_attention.py --mass     the mass by block size beside the chunk's attention, 8K over 32K and over 8K
Llama-3.1-8B's heads: 32 query heads, 8 KV heads, 128 channels, bf16.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "runtime")]

import torch  # noqa: E402
from sparsec_runtime.attention.observe import QueryBlock  # noqa: E402
from sparsec_runtime.gpu import prefill, window  # noqa: E402
from sparsec_runtime.gpu.cuts import Cuts  # noqa: E402
from sparsec_runtime.gpu.prefill import ChunkAttention, column_mass  # noqa: E402
from sparsec_runtime.zones import Pieces  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

H, G, D = 8, 4, 128
SHAPES = ((8192, 8192), (8192, 32768), (8192, 131072), (2048, 32768))
ATTENTION_TILES = tuple((block, tile, warps, stages) for block in (64, 128) for tile in (32, 64, 128) for warps in (4, 8) for stages in (2, 3, 4))
WINDOW_TILES = tuple(  # pairs, tokens of a tile and of a run, warps, stages
    (128, tile, run, warps, stages) for tile, warps in ((64, 4), (64, 8), (128, 4), (128, 8)) for run in (512, 1024, 2048) for stages in (2, 3)
)
MASS_TILES = (  # rows, pairs of a query and a head, warps, stages
    (256, 64, 8, 2), (256, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 2), (128, 64, 4, 3), (128, 128, 4, 2), (256, 64, 4, 2), (256, 128, 8, 2),
    (128, 64, 8, 3), (64, 128, 4, 2), (128, 256, 8, 2),
)  # fmt: skip


def timed(run: Callable[[], object], repeats: int = 7) -> float:
    """Median milliseconds, warm."""
    run()
    times = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[repeats // 2]


def chunk(queries: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = torch.randn(1, queries, H, G, D, device="cuda", dtype=torch.bfloat16)
    keys = torch.randn(1, H, tokens, D, device="cuda", dtype=torch.bfloat16)
    return q, keys, torch.randn_like(keys)


def useful(queries: int, tokens: int) -> float:
    """FLOPs of both products over the pairs that are seen."""
    return 4.0 * H * G * D * (queries * (tokens - queries) + queries * (queries + 1) / 2)


def attention_of(queries: int, cuts: Cuts | None) -> ChunkAttention:
    made = ChunkAttention(H * G, H, D, torch.bfloat16, torch.device("cuda"), cuts)
    start = time.perf_counter()
    made.warm_up()
    torch.cuda.synchronize()
    print(json.dumps({"warm_up": queries, "cudnn": cuts is not None, "seconds": round(time.perf_counter() - start, 2)}), flush=True)
    return made


def shapes() -> None:
    scale = D**-0.5
    for queries, tokens in SHAPES:
        q, keys, values = chunk(queries, tokens)
        split, alone = attention_of(queries, Cuts(queries, 131072)), attention_of(queries, None)
        (out, lse), (other, _) = split(q, Pieces(keys[0]), Pieces(values[0]), scale), alone(q, Pieces(keys[0]), Pieces(values[0]), scale)
        spent = {name: timed(lambda made=made: made(q, Pieces(keys[0]), Pieces(values[0]), scale)) for name, made in (("cudnn", split), ("triton", alone))}
        masses = {over_g: timed(lambda over_g=over_g: column_mass(q, keys, lse, scale, over_g)) for over_g in ("sum", "mean", "max")}
        print(json.dumps({
            "queries": queries, "tokens": tokens,
            "ms": {name: round(ms, 3) for name, ms in spent.items()},
            "tflops": {name: round(useful(queries, tokens) / ms / 1e9, 1) for name, ms in spent.items()},
            "mass_ms": {name: round(ms, 3) for name, ms in masses.items()},
            "mass_of_attention": {name: round(ms / spent["cudnn"], 3) for name, ms in masses.items()},
            "apart": float((out.float() - other.float()).norm() / other.float().norm()),
        }), flush=True)  # fmt: skip


def tiles(queries: int = 8192, tokens: int = 32768) -> None:
    scale = D**-0.5
    q, keys, values = chunk(queries, tokens)
    alone = ChunkAttention(H * G, H, D, torch.bfloat16, torch.device("cuda"), None)
    for sizes in ATTENTION_TILES:
        _one("attention", sizes, "attention_sizes", lambda: alone(q, Pieces(keys[0]), Pieces(values[0]), scale), useful(queries, tokens))


def mass() -> None:
    """Every size of MASS_TILES; its sums are compared with those of the first, because a faster wrong one would be chosen."""
    scale = D**-0.5
    for queries, tokens in ((8192, 32768), (8192, 8192)):
        q, keys, values = chunk(queries, tokens)
        split = attention_of(queries, Cuts(queries, tokens))
        _, lse = split(q, Pieces(keys[0]), Pieces(values[0]), scale)
        beside = timed(lambda: split(q, Pieces(keys[0]), Pieces(values[0]), scale))
        print(json.dumps({"queries": queries, "tokens": tokens, "attention ms": round(beside, 3)}), flush=True)
        for over_g in ("mean", "max"):
            wanted = column_mass(q, keys, lse, scale, over_g)
            for sizes in MASS_TILES:
                _one(over_g, sizes, "mass_sizes", lambda over_g=over_g: column_mass(q, keys, lse, scale, over_g), useful(queries, tokens) / 2, beside, wanted)


def newest(tokens: int = 32768) -> None:
    """Sums are compared with the softmax in torch. `launched`: one after another, as the engine does; `graph`: without the host."""
    real = window.window_sizes
    for queries in (32, 128):
        q, keys, _ = chunk(queries, tokens)
        positions = torch.arange(tokens, device="cuda")
        given = (q, positions[None, -queries:], torch.ones((1, queries), dtype=torch.bool, device="cuda"), keys)
        row_pos = positions.expand(1, H, tokens).contiguous()
        made = lambda: QueryBlock(*given, scale=D**-0.5, row_pos=row_pos)  # noqa: B023, E731
        wanted = made().probs.sum(1).mean(2)
        for sizes in WINDOW_TILES:
            window.window_sizes = lambda *_: sizes  # noqa: B023
            run = lambda: made().mass("sum").mean(2)  # noqa: B023, E731
            line = {"queries": queries, "pairs, tile, run, warps, stages": sizes}
            try:
                apart = float((run() - wanted).norm() / wanted.norm())
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    run()
                line |= {"launched_ms": round(timed(run, 21), 4), "graph_ms": round(timed(graph.replay, 21), 4), "apart": apart}
            except OutOfResources as error:
                line["refused"] = str(error).split(".")[0]
            print(json.dumps(line), flush=True)
    window.window_sizes = real


def _one(
    what: str, sizes: tuple[int, int, int, int], name: str, run: Callable[[], object], flops: float, beside: float = 0.0, wanted: torch.Tensor | None = None
) -> None:
    """One line for these sizes, in the place of those that the runtime has."""
    real = getattr(prefill, name)
    setattr(prefill, name, lambda *_: sizes)
    line: dict[str, object] = {"kernel": what, "block, tile, warps, stages": sizes}
    try:
        ms = timed(run, 3)
        line |= {"ms": round(ms, 3), "tflops": round(flops / ms / 1e9, 1)}
        if wanted is not None:
            line |= {"of attention": round(ms / beside, 3), "apart": float(((run() - wanted) / wanted).abs().max())}
    except OutOfResources as error:
        line["refused"] = str(error).split(".")[0]
    finally:
        setattr(prefill, name, real)
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--mass", action="store_true")
    parser.add_argument("--window", action="store_true")
    torch.manual_seed(0)
    args = parser.parse_args()
    (tiles if args.tiles else mass if args.mass else newest if args.window else shapes)()


if __name__ == "__main__":
    main()
