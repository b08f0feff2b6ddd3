"""Microseconds of choosing a batch's ids inside a graph, by how the rows sample: the gates "sampling inside the graph", and other kinds beside them.

`--out FILE` appends a JSON row for each kind. `--kernels` prints what each kernel takes, as a profiler sees it. `--compile` needs no GPU: registers and shared memory of the kernels on an H200.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "runtime")]

import torch
import triton
from sparsec_runtime.gpu.kernels import narrow, sample, threshold
from sparsec_runtime.gpu.sampling import SampleSizes

from sparsec.bench.draws import SPREAD, draw_seconds, kernel_seconds, random_logits
from sparsec.bench.gates import shipped_gates

KINDS: dict[str, dict[str, float]] = {
    "greedy": {},
    "top-k 50, top-p 0.9": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "top-p 0.99, temperature 30": {"temperature": 30.0, "top_p": 0.99},
    "temperature": {"temperature": 1.0},
    "min-p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "top-k 1,000": {"temperature": 1.0, "top_k": 1000},
    "top-k 5,000": {"temperature": 1.0, "top_k": 5000},
    "top-k 5,000, top-p 0.9": {"temperature": 1.0, "top_k": 5000, "top_p": 0.9},
    "top-k 50, top-p 0.9, repetition 1.1": {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.1},
}
POINTERS = {
    "logits": "*bf16", "scales": "*fp32", "prompt": "*i8", "count": "*i32", "best": "*fp32", "best_id": "*i32", "asked": "*i64", "shares": "*fp64",
    "found": "*i64", "top": "*fp32", "sums": "*i64", "list": "*i32", "parts": "*i64", "marks": "*i32", "bytes": "*u8", "ids": "*i64",
}  # fmt: skip


def compiled() -> None:
    from compile_kernels import resources
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sizes = SampleSizes()
    values = {
        "PART": sizes.part, "GROUP": sizes.group, "SUMS": narrow.PASSES * narrow.WAYS, "PASS": 1, "LIST": sizes.listed, "TILE": sizes.tile, "ID_BITS": 18,
        "WORDS": sizes.words, "PARTS": 128, "CHAINED": False,
    }  # fmt: skip
    kernels = {
        sample.largest_of_groups: (0, 4), sample.begin_draw: (2048, 4), narrow.narrow: (0, sizes.pass_warps), narrow.weigh_and_mark: (0, sizes.pass_warps),
        threshold.find_threshold: (0, sizes.find_warps), sample.draw: (128, 4),
    }  # fmt: skip
    for penalties in (False, True):
        for kernel, (width, warps) in kernels.items():
            constants = {name: value for name, value in {**values, "PENALTIES": penalties, "BLOCK": width}.items() if name in kernel.arg_names}
            types = {n: "constexpr" if n in constants else POINTERS[n.removesuffix("_ptr")] if n.endswith("_ptr") else "i32" for n in kernel.arg_names}
            places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
            aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(kernel.arg_names) if name.endswith("_ptr")}
            made = triton.compile(
                ASTSource(kernel, types, places, aligned), target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "enable_fp_fusion": False}
            )
            label = "penalties" if penalties else ""
            print(f"{kernel.fn.__name__:20} {label:10} warps {warps} shared {made.metadata.shared:6} {resources(made.asm['cubin'])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--spread", type=float, default=SPREAD, help="standard deviation of the random logits")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    if args.compile:
        compiled()
        return
    gates = [gate for gate in shipped_gates() if gate.how == "sample" and gate.sizes == {"rows": args.rows, "vocab": args.vocab}]
    logits = random_logits(args.rows, args.vocab, torch.device("cuda"), args.spread)
    for name, params in KINDS.items():
        us = draw_seconds(logits, params) * 1e6
        gate = next((gate.target for gate in gates if gate.sampling == params), None)
        row = {"sampling": name, "rows": args.rows, "vocab": args.vocab, "spread": args.spread, "us": round(us, 1), "gate_us": gate}
        row |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
        print(f"{name:36} {us:8.1f} us" + ("" if gate is None else f"  (gate {gate:.0f})"), flush=True)
        if args.kernels:
            for kernel, (time, launches) in kernel_seconds(logits, params).items():
                print(f"    {kernel[:60]:60} {launches:2} launches {time * 1e6:8.1f} us", flush=True)
        if args.out is not None:
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
