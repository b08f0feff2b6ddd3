"""Times attention over a coded zone and a raw tail by block size, one layer of many with distinct buffers: what `zones` of gpu/tuning.py is set from.

    python benchmarks/coded.py 4 2            # bits; beside bf16 rows of the same length, with the sizes that are set
    python benchmarks/coded.py 4 2 --sweep
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "runtime")]

import torch  # noqa: E402
from kernels import D, G, H, Layers, parts, timed  # noqa: E402
from sparsec_runtime.gpu.tuning import Tuning, ZoneSizes  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

from sparsec.pipeline import Compilation, load_manager  # noqa: E402

BLOCK, TAIL, PAGE, SCALE2 = 32, 128, 128, 0.1275
SWEEP = [  # the number of programs is no constant of the kernel: those of one line are one compilation
    ZoneSizes(chunk, rest, warps, stages, programs)
    for (chunk, rest), warps, stages, programs in itertools.product(((1024, 128), (1024, 64), (2048, 64)), (1,), (3, 4), (8, 16, 32))
]


def table_of(pages: int, rows: int) -> torch.Tensor:
    return (torch.randperm(pages * rows, device="cuda") + 1).int().view(rows, pages)


class CodedLayers:
    """Pools of several layers at `bits`, `tokens` of each of `rows` requests coded and TAIL raw behind them."""

    def __init__(self, rows: int, tokens: int, bits: int) -> None:
        self.rows, self.tokens = rows, tokens
        pages = tokens // PAGE
        units = (rows * pages + 1) * H
        self.layer_bytes = rows * tokens * H * (2 * D * bits // 8 + 2 * 4 * D // BLOCK) + rows * TAIL * H * D * 4
        self.layers = max(2, min(32, int(2e9 // self.layer_bytes)))
        words = (self.layers, units, PAGE * bits // 16, D)
        self.k, self.v = (torch.randint(-(2**15), 2**15 - 1, words, device="cuda", dtype=torch.int16) for _ in range(2))
        self.k_group = [torch.rand(self.layers, units, PAGE // BLOCK, D, device="cuda", dtype=torch.bfloat16) * 0.1 for _ in range(2)]
        self.v_group = [torch.rand(self.layers, units, D // BLOCK, PAGE, device="cuda", dtype=torch.bfloat16) * 0.1 for _ in range(2)]
        self.tails = [torch.randn(self.layers, (rows * TAIL // 16 + 1) * H, 16, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        self.tables, self.tail_tables = [table_of(pages, rows) for _ in range(2)], [table_of(TAIL // 16, rows) for _ in range(2)]
        self.q = torch.randn(rows, H * G, D, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        self.held = torch.full((rows,), tokens + TAIL, device="cuda", dtype=torch.int32)
        self.packed = self.held - TAIL

    def run(self, kernels, size: ZoneSizes) -> None:
        """Every layer once."""
        items = self.rows * H * (self.tokens // (size.chunk // 2) + 18 + TAIL // size.rest)
        part, lse = parts(items)
        common = {"entries": self.rows, "EP": 16, "H": H, "G": G, "D": D, "DP": D, "CHUNK": size.chunk, "REST": size.rest}
        for n in range(self.layers):
            kernels.attend_zones[(min(items, size.programs * 132),)](
                self.q, self.k[n], self.k_group[0][n], self.k_group[1][n], self.v[n], self.v_group[0][n], self.v_group[1][n], self.tails[0][n],
                self.tails[1][n], *self.tables, *self.tail_tables, self.held, self.packed, self.packed, part, lse, scale2=SCALE2, table_row=self.tables[0].stride(0),
                tail_row=self.tail_tables[0].stride(0), **common, GP=8, PAGE=PAGE, TAIL_PAGE=16, TILE=16, STAGES=size.stages, EXACT=False, PLAIN=False,
                num_warps=size.warps,
            )  # fmt: skip
            kernels.merge_zones[(self.rows, H * G)](part, lse, self.held, self.packed, self.packed, self.out, **common, TILE=64, num_warps=4)


def raw(rows: int, tokens: int) -> float:
    """Microseconds a layer of bf16 rows, with the sizes that are set."""
    kernels, size = load_manager(Compilation.load("dense")).decode_kernels(), Tuning(132).whole
    layers = 4
    made = Layers.made(layers, rows, tokens)
    items = rows * H * (17 + tokens // (size.chunk // 2))
    part, lse = parts(items)
    common = {"entries": rows, "EP": 16, "H": H, "G": G, "D": D, "DP": D, "CHUNK": size.chunk}

    def run() -> None:
        for n in range(layers):
            kernels.attend_rows[(min(items, size.programs * 132),)](
                *made.of(n), part_ptr=part, lse_ptr=lse, scale2=SCALE2, table_row=made.table.stride(0), **common, GP=16, PAGE=16, TILE=size.tile,
                STAGES=size.stages, EXACT=False, num_warps=size.warps,
            )  # fmt: skip
            kernels.merge_chunks[(rows, H * G)](part, lse, made.held, made.out, made.lse, **common, TILE=64, num_warps=4)

    return timed(run) / layers * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bits", nargs="+", type=int)
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    rows, tokens = 8, 32768
    dense = raw(rows, tokens)
    print(f"bf16, {rows} x {tokens}: {dense:.1f} us a layer, {rows * tokens * H * D * 4 / dense / 1e6:.2f} TB/s", flush=True)
    for bits in args.bits:
        kernels = load_manager(Compilation.load("kivi", params={"k_bits": bits, "v_bits": bits, "block": BLOCK})).decode_kernels()
        made = CodedLayers(rows, tokens, bits)
        found = []
        for size in SWEEP if args.sweep else [Tuning(132).zones]:
            try:
                us = timed(partial(made.run, kernels, size)) / made.layers * 1e3
            except (RuntimeError, OutOfResources) as error:
                print("skipped", size, str(error)[:80], flush=True)
                continue
            found.append((us, size))
        for us, size in sorted(found, key=lambda one: one[0])[:8]:
            print(f"{bits} bit: {us:.1f} us a layer, {made.layer_bytes / us / 1e6:.2f} TB/s, {dense / us:.2f}x bf16", json.dumps(asdict(size)), flush=True)
        del made
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
