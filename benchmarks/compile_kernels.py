"""Compiles the kernels for an H200 where no GPU is, and prints registers, shared memory and spills: what costs no device time to know."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "runtime")]

import triton  # noqa: E402
from sparsec_runtime.gpu.kernels import attention, block, choose, evict, mass, project, write  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

HEADS = {"H": 8, "G": 4, "GP": 16, "D": 128, "DP": 128}
ENTRIES = {"ENTRIES": 8, "EP": 16, "RAGGED": False}
ATTEND = {**ENTRIES, **HEADS, "PAGE": 16, "CHUNK": 1024, "TILE": 64, "PER_HEAD": False, "PICKED": False, "LOGITS": False, "FIRSTS": False,
          "STAGES": 2, "EXACT": False}  # fmt: skip
INTS = ("table", "len", "pages", "held", "kept", "first", "newest", "source", "count", "row_pos", "pos")
FLOATS = ("part", "lse", "logits", "cos", "sin", "worth", "state", "row_lse", "best", "rank_cos", "rank_sin", "freq")


def signature(kernel, constants: dict[str, object]) -> dict[str, str]:
    """Pointer types by the names of the arguments; what is not a pointer is a number."""
    types = {}
    for name in kernel.arg_names:
        stem = name.removesuffix("_ptr")
        if name in constants or name == "CHAINED":
            types[name] = "constexpr"
        elif name.endswith("_ptr"):
            types[name] = "*i32" if stem in INTS else "*fp32" if stem in FLOATS else "*i64" if stem == "ids" else "*bf16"
        else:
            types[name] = "fp32" if name in ("scale2", "eps", "scaling", "state_initial") else "i32"
    return types


def report(kernel, constants: dict[str, object], warps: int, label: str = "") -> None:
    constants = {**constants, "CHAINED": False} if "CHAINED" in kernel.arg_names else constants
    # Pointers and the distances between rows are multiples of 16 here, as in a run.
    attributes = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(kernel.arg_names) if name.endswith("_ptr")}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature(kernel, constants), places, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    print(f"{kernel.fn.__name__:16} {label:28} warps {warps:2} shared {compiled.metadata.shared:6} {resources(compiled.asm['cubin'])}", flush=True)


def resources(cubin: bytes) -> str:
    """Registers, stack and local memory as the disassembler reports them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout
    return " ".join(re.findall(r"(?:REG|STACK|LOCAL):\d+", text)[:3])


def main() -> None:
    for tile, stages, warps in ((64, 2, 4), (64, 2, 2)):
        report(attention.attend_chunks, {**ATTEND, "TILE": tile, "STAGES": stages}, warps, f"tile {tile} stages {stages}")
    report(attention.attend_chunks, {**ATTEND, "LOGITS": True}, 2, "logits")
    report(attention.attend_chunks, {**ATTEND, "FIRSTS": True}, 4, "first rows apart")
    report(attention.attend_chunks, {**ATTEND, "PICKED": True, "CHUNK": 512, "STAGES": 3}, 2, "picked pages")
    report(attention.merge_chunks, {**ENTRIES, "H": 8, "G": 4, "D": 128, "DP": 128, "CHUNK": 1024, "TILE": 64}, 4)
    report(choose.bound_pages, {"ROWS": 8, "EP": 16, **HEADS, "PAGE": 16, "TILE": 64, "PER_HEAD": False, "OVER_G": "max", "EXACT": False}, 4)
    for size in (4096, 16384):
        report(choose.best_pages, {"H": 8, "PAGE": 16, "BLOCK": size}, 8, f"{size} pages")
    report(evict.rows_that_stay, {"H": 8, "PAGE": 16, "BLOCK": 16384}, 16)
    report(evict.rows_at_the_ends, {"H": 8, "TILE": 1024}, 4)
    report(write.turn_rows, {"H": 8, "D": 128, "HALF": 64, "PAGE": 16, "TILE": 64}, 4)
    report(block.begin_step, {"BLOCK": 1024, "HALF": 64, "RANKS": True}, 4)
    report(evict.move_rows, {"H": 8, "PAGE": 16, "WIDTH": 128, "PADDED": 128, "TILE": 64}, 4)
    report(mass.add_mass, {**ENTRIES, "H": 8, "G": 4, "PAGE": 16, "TILE": 512, "PER_HEAD": False, "OVER_G": "mean"}, 4)
    report(project.project, {"DEPTH": 4096, "BM": 16, "BN": 64, "BK": 128, "SPLITS": 4, "BIAS": False, "STAGES": 3}, 4)
    report(project.project_gated, {"DEPTH": 4096, "BM": 16, "BN": 32, "BK": 128, "STAGES": 3}, 4)
    report(block.add_rms_norm, {"SPLITS": 4, "BLOCK": 4096}, 8)
    report(write.write_rows, {"HQ": 32, "H": 8, "D": 128, "DP": 128, "PAGE": 16, "PER_HEAD": False, "NORM": True, "FIRSTS": True, "POSITIONS": True,
                              "STATE": True, "BOUNDS": True}, 1)  # fmt: skip


if __name__ == "__main__":
    main()
