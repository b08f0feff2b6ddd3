"""Compiles the kernels for an H200 where no GPU is, and prints registers, shared memory and spills: what costs no device time to know."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "runtime")]

import triton  # noqa: E402
from sparsec_runtime.gpu.compact import NARROW, WIDE  # noqa: E402
from sparsec_runtime.gpu.kernels import block, chunk, compact, draw, encode, evict, prefill, project, rank, sampled, turn, window  # noqa: E402
from sparsec_runtime.gpu.ranking import warps_of  # noqa: E402
from sparsec_runtime.gpu.tuning import Tuning  # noqa: E402
from sparsec_runtime.gpu.window import RUN, window_sizes  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from sparsec.dsl.source import shipped_methods  # noqa: E402
from sparsec.pipeline import Compilation, load_manager  # noqa: E402

HEADS = {"H": 8, "G": 4, "GP": 16, "D": 128, "DP": 128}
MODEL = {**HEADS, "EP": 16, "HP": 8, "QP": 32, "HQ": 32, "PAGE": 16, "CHUNK": 1024, "TILE": 64, "STAGES": 2, "EXACT": False, "NORM": True,
         "TAIL_PAGE": 16, "REST": 128}
SETTINGS = {  # of generated kernels by name: constants that differ, and warps, as gpu/forward.py launches them
    "write_rows": ({}, 1), "attend_pages": ({"CHUNK": 512, "STAGES": 3}, 2), "attend_tokens": ({"CHUNK": 512, "STAGES": 3}, 2),
    "attend_rows_and_tell": ({}, 2),
    "bound_pages": ({"CHUNK": 32, "TILE": 8, "STAGES": 3}, 4),
    "attend_zones": ({"PAGE": 128, "TILE": 16, "GP": 8, "STAGES": 3, "PLAIN": False}, 1), "add_mass": ({"TILE": 512}, 4),
}  # fmt: skip
INTS = ("table", "v_table", "k_table", "k_tail_table", "v_tail_table", "from_table", "len", "v_len", "k_packed", "v_packed", "packed", "moved",
        "pages", "tokens", "held", "kept", "first", "newest", "source", "count", "number", "group", "row_pos", "pos", "key", "entry", "listed", "told", "between")
WORDS = {"attend_zones": ("k", "v"), "encode_rows": ("words",)}  # codes
LONGS = {name: ("row_pos", "query_pos") for name in ("lse_of_window", "mass_of_window")} | {"write_chunk": ("k_units", "v_units", "k_first", "v_first")}  # 64 bit, where others have 32
FLOATS = ("part", "lse", "logits", "cos", "sin", "turn", "worth", "state", "row_lse", "best", "rank_cos", "rank_sin", "freq", "score", "top", "total",
          "mass", "a_lse", "b_lse", "lse2")  # fmt: skip
DISTANCES = ("k_row", "data_layer", "source_layer", "source_place", "pairs", "score_line", "best_line", "k_head", "v_head", "a_query", "a_head", "b_query", "b_head")
PROMPT_TILES = ((128, 64, 3, 8), (128, 64, 4, 8), (128, 128, 2, 8))  # queries, rows, stages, warps
MASS_TILES = ((256, 64, 2, 8), (256, 64, 3, 8), (256, 128, 2, 8), (128, 64, 3, 4), (128, 128, 2, 4), (128, 128, 2, 8))  # rows, pairs, stages, warps


def signature(kernel, constants: dict[str, object]) -> dict[str, str]:
    """Pointer types by the names of the arguments; what is not a pointer is a number."""
    types = {}
    for name in kernel.arg_names:
        stem = name.removesuffix("_ptr")
        if name in constants or name == "CHAINED":
            types[name] = "constexpr"
        elif name == "q_rows":
            types[name] = f"tensordesc<bf16[{constants['BQ']},{constants['DP']}]>"
        elif name.endswith("_ptr"):
            types[name] = "*i64" if stem in ("ids", *LONGS.get(kernel.fn.__name__, ())) else "*u8" if stem == "query_valid" else "*i16" if stem in WORDS.get(kernel.fn.__name__, ()) else "*i32" if stem in INTS else "*fp32" if stem in FLOATS or stem.startswith("state_") else "*bf16"
        else:
            types[name] = "fp32" if name in ("scale2", "eps", "scaling") else "i32"
    return types


def report(kernel, constants: dict[str, object], warps: int, label: str = "") -> None:
    constants = {**constants, "CHAINED": False} if "CHAINED" in kernel.arg_names else constants
    # Pointers and the distances between rows are multiples of 16 here, as in a run.
    attributes = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(kernel.arg_names) if name.endswith("_ptr") or name in DISTANCES}
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


def prompts() -> None:
    """The kernels of prompt chunks, as gpu/prefill.py sizes them, and sizes beside those."""
    for channels, half in ((128, 64), (80, 40), (128, 32)):
        sizes = {"HQ": 32, "H": 8, "D": channels, "DP": 128, "HALF": half, "HALF_PADDED": max(32, 1 << (half - 1).bit_length()), "PAGE": 16, "TILE": 32}
        report(chunk.write_chunk, sizes, 4, f"{2 * half} of {channels} channels turn")
    attended = {"HEADS": 32, "G": 4, "D": 128, "DP": 128, "STAGES": 2, "EXACT": False}
    for causal in (False, True):
        for queries, rows, stages, warps in PROMPT_TILES:
            label = f"{'causal' if causal else 'open'} {queries} x {rows} stages {stages}"
            report(prefill.attend_rows, {**attended, "BM": queries, "BN": rows, "CAUSAL": causal, "STAGES": stages}, warps, label)
    for channels, padded in ((80, 128), (256, 256)):
        report(prefill.attend_rows, {**attended, "D": channels, "DP": padded, "BM": 128, "BN": 64, "CAUSAL": True}, 8, f"causal, {channels} channels")
    report(prefill.merge_two, {"HEADS": 32, "D": 128, "DP": 128, "BLOCK": 32}, 4)
    mass = {name: value for name, value in attended.items() if name != "HEADS"} | {"E": 4, "RUN": 8}
    for over_g, (rows, pairs, stages, warps) in itertools.product(("mean", "max"), MASS_TILES):
        report(prefill.mass_of_rows, {**mass, "BT": rows, "BQ": pairs, "OVER_G": over_g, "STAGES": stages}, warps, f"{over_g} {rows} x {pairs} stages {stages}")

    for channels in (128, 256):
        pairs, tile, _, warps, stages = window_sizes(channels, False, 4)
        sizes = {"H": 8, "G": 4, "GP": 4, "D": channels, "DP": channels, "BM": pairs, "BN": tile, "RUN": RUN, "STAGES": stages, "EXACT": False}
        for kernel in (window.lse_of_window, window.mass_of_window):
            report(kernel, sizes, warps, f"{channels} channels, tiles of {tile}")


def turned() -> None:
    """Attention that turns keys at their ranks, as gpu/tuning.py sizes it."""
    kernels, size = load_manager(Compilation.load("h2o", params={"positions": "cache"})).decode_kernels(), Tuning(132).weighing
    for kernel in (kernels.attend_rows, kernels.attend_rows_and_tell):
        sizes = MODEL | {"HALF": 64, "PAIRS": 64, "CHUNK": size.chunk, "TILE": size.tile, "STAGES": size.stages}
        report(kernel, {key: value for key, value in sizes.items() if key in kernel.arg_names}, size.warps, "keys turned")


def main() -> None:
    prompts()
    for method in shipped_methods():
        load = load_manager(Compilation.load(method)).decode_kernels
        for name, kernel in vars(load()).items() if load is not None else ():
            if isinstance(kernel, triton.JITFunction) and kernel.fn.__module__ == load().__name__:
                constants, warps = SETTINGS.get(name, ({}, 4))
                report(kernel, {key: value for key, value in (MODEL | constants).items() if key in kernel.arg_names}, warps, method)
    turned()
    ranked = {"H": 8, "UNIT": 16, "ENDS": False}
    for size in (1024, 2048, 8192, 16384):
        report(rank.rank_line, {**ranked, "BLOCK": size}, warps_of(size), f"{size} entries")
    report(rank.rank_groups, {"H": 8, "UNIT": 16, "GROUP": 8, "GROUPS": 2048, "MOST": 256}, warps_of(2048), "2048 groups, 256 looked at")
    report(rank.rank_parts, {**ranked, "BLOCK": 1024, "PADDED": 256}, warps_of(1024), "128 of parts of 1024")
    report(rank.rank_parts, {**ranked, "BLOCK": 16384, "PADDED": 4096}, warps_of(16384), "4096 of parts of 16384")
    for size, whole in ((2048, True), (16384, True), (16384, False)):
        report(rank.rank_survivors, {"H": 8, "BLOCK": size, "WHOLE": whole}, warps_of(size), f"{size} pairs{'' if whole else ' at a time'}")
    for size, parts, room in ((2048, 16, 4096), (8192, 16, 8192)):
        line = {"H": 1, "UNIT": 1, "ENDS": True, "BLOCK": size}
        report(sampled.count_parts, {**line, "SAMPLE": size // 2}, warps_of(size), f"parts of {size}")
        report(sampled.list_parts, {**line, "PARTS": parts, "ROOM": room}, warps_of(size), f"{parts} parts of {size}, {room} between")
    heads = {"HQ": 32, "HP": 32, "TILE": 256}
    report(draw.sum_candidates, {**heads, "PART": 1024}, 8)
    report(draw.worth_of_tokens, {**heads, "SHARES": True, "PARTS": 128}, 8, "shares, 128 parts")
    for size, in_parts in ((8192, False), (16384, True)):
        report(evict.rows_that_stay, {"H": 8, "PAGE": 16, "BLOCK": size, "IN_PARTS": in_parts, "PADDED": 4096}, warps_of(size), f"{size} rows")
    report(evict.rows_at_the_ends, {"H": 8, "TILE": 1024}, 4)
    for worth in ("state", "asked", "known"):
        report(evict.replace_victims, {"H": 8, "D": 128, "DP": 128, "PAGE": 16, "BLOCK": 2048, "WORTH": worth, "STATE": worth == "state"}, 8, worth)
    for bits, along_t in ((4, True), (2, False)):
        codec = {"BITS": bits, "ALONG_T": along_t, "BLOCK": 32, "ZERO": True, "ROWS": 256 // bits}
        report(encode.encode_rows, {"H": 8, "D": 128, "DP": 128, "FROM_PAGE": 16, "PAGE": 128, **codec}, 4, f"{bits} bits along {'t' if along_t else 'c'}")
    report(encode.shift_rows, {"H": 8, "D": 128, "DP": 128, "PAGE": 16, "TILE": 64}, 4)
    report(turn.turn_rows, {"H": 8, "D": 128, "HALF": 64, "PAGE": 16, "TILE": 64}, 4)
    report(block.begin_step, {"BLOCK": 1024, "HALF": 64, "RANKS": True}, 4)
    for width, (tile, warps) in ((128, WIDE), (1, NARROW)):
        report(compact.move_rows, {"H": 8, "PAGE": 16, "WIDTH": width, "PADDED": width, "TILE": tile}, warps, f"{width} wide, tiles of {tile}")
    report(project.project, {"DEPTH": 4096, "BM": 16, "BN": 64, "BK": 128, "SPLITS": 4, "BIAS": False, "STAGES": 3}, 4)
    report(project.project_gated, {"DEPTH": 4096, "BM": 16, "BN": 32, "BK": 128, "STAGES": 3}, 4)
    report(block.add_rms_norm, {"SPLITS": 4, "BLOCK": 4096}, 8)


if __name__ == "__main__":
    main()
