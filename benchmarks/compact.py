"""The move of the rows that stay to the front of their pages, on one GPU, by the size of its tiles: one JSON line each.

    python benchmarks/compact.py            4,096 of 32,768 rows of 32 layers and 8 KV heads of 128 channels, bf16: K, V, positions and one state
    python benchmarks/compact.py --check    once, of few rows and layers, compared with a copy: for compute-sanitizer --tool racecheck
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "runtime")]

import torch  # noqa: E402
from sparsec_runtime.gpu import compact  # noqa: E402
from sparsec_runtime.zones import Geometry, PagedArray  # noqa: E402

from sparsec.bench.ceiling import seconds  # noqa: E402

HEADS, CHANNELS, PAGE = 8, 128, 16
WIDE = ((32, 4), (64, 4), (64, 8), (128, 8), (128, 16))
NARROW = ((512, 4), (1024, 4), (1024, 8), (2048, 8))


def made(layers: int, tokens: int) -> tuple[list[PagedArray], torch.Tensor]:
    """K, V, positions and a state, and the table [1, index] of one request's random pages."""
    device = torch.device("cuda")
    geometry = Geometry("shared", layers, HEADS, PAGE, tokens, device)
    inner = (((CHANNELS,), torch.bfloat16), ((CHANNELS,), torch.bfloat16), ((), torch.int32), ((), torch.float32))
    arrays = [PagedArray(geometry, PAGE, shape, dtype) for shape, dtype in inner]
    for array in arrays:
        array.data.copy_(torch.randint(-100, 100, (1,), device=device))
    return arrays, (torch.randperm(tokens // PAGE, device=device) + 1).to(torch.int32)[None]


def random_rows(layers: int, tokens: int, kept: int) -> torch.Tensor:
    """[layer, head, n]: which rows stay, ascending."""
    return torch.rand((layers, HEADS, tokens), device="cuda").topk(kept).indices.sort(-1).values.to(torch.int32)


def measured(layers: int = 32, tokens: int = 32768, kept: int = 4096) -> None:
    arrays, table = made(layers, tokens)
    source, count = random_rows(layers, tokens, kept), torch.tensor([kept], dtype=torch.int32, device="cuda")
    moved = 2 * source.numel() * sum(array.data[0, 0, 0].numel() * array.data.element_size() for array in arrays)
    usual = compact.WIDE, compact.NARROW
    for name, chosen, sizes in (("wide", arrays[:2], WIDE), ("narrow", arrays[2:], NARROW)):
        for size in sizes:
            setattr(compact, name.upper(), size)
            took = seconds(lambda chosen=chosen: compact.move_to_front(chosen, HEADS, table, source, count))
            print(json.dumps({"arrays": name, "tile, warps": size, "ms": round(took * 1e3, 4)}), flush=True)
    compact.WIDE, compact.NARROW = usual
    took = seconds(lambda: compact.move_to_front(arrays, HEADS, table, source, count))
    print(json.dumps({"arrays": "all", "ms": round(took * 1e3, 4), "tb_s": round(moved / took / 1e12, 2)}), flush=True)


def check(layers: int = 1, tokens: int = 512, kept: int = 200) -> None:
    arrays, table = made(layers, tokens)
    for array in arrays:
        array.data.copy_(torch.randint(-100, 100, array.data.shape, device="cuda"))
    source, before = random_rows(layers, tokens, kept), [array.data.clone() for array in arrays]
    compact.move_to_front(arrays, HEADS, table, source, torch.tensor([kept], dtype=torch.int32, device="cuda"))
    for array, old in zip(arrays, before):
        for head in range(HEADS):
            now, then = (data[0, table[0].long() * HEADS + head].flatten(0, 1) for data in (array.data, old))
            assert torch.equal(now[:kept], then[source[0, head].long()]) and torch.equal(now[kept:], then[kept:])
    print("every row is where it belongs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    torch.manual_seed(0)
    (check if parser.parse_args().check else measured)()


if __name__ == "__main__":
    main()
