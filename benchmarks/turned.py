"""Times attention that turns keys at their ranks beside attention that does not, by block size: what `Tuning.weighing` is set from.

8 rows of 8,192 tokens unless given: `python benchmarks/turned.py [ROWS TOKENS]`. The gate "re-counted positions by rotating keys" times the same in a step.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import ModuleType

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "runtime")]

import torch  # noqa: E402
from kernels import PAGE, D, G, H, Layers, parts, timed  # noqa: E402
from sparsec_runtime.gpu.blocks import tile_of  # noqa: E402
from sparsec_runtime.gpu.buffers import turns  # noqa: E402
from sparsec_runtime.gpu.tuning import AttentionSizes, Tuning  # noqa: E402
from sparsec_runtime.rope import Rope  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

from sparsec.pipeline import Compilation, load_manager  # noqa: E402

LAYERS = 4
SWEEP = [
    AttentionSizes(chunk, tile, warps, stages, programs)
    for (tile, warps, programs), chunk, stages in itertools.product(
        ((64, 4, 2), (64, 4, 3), (64, 2, 4), (32, 2, 4), (32, 4, 3), (128, 8, 1)), (512, 1024), (2, 3),
    )
]  # fmt: skip


def kernels_of(positions: str) -> ModuleType:
    return load_manager(Compilation.load("h2o", params={"positions": positions})).decode_kernels()


class Turning:
    """Distinct pools of some layers, more than the L2 holds, and what all launches share."""

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows, self.tokens = rows, tokens
        self.layers = Layers.made(LAYERS, rows, tokens)
        self.logits = torch.empty(rows, H * G, tokens, device="cuda")
        self.rope = Rope.plain(10000.0, D, device="cuda")

    def microseconds(self, made: ModuleType, size: AttentionSizes, turned: bool, tells: bool) -> float:
        """Of attention in one layer."""
        items = self.rows * H * (17 + self.tokens // (size.chunk // 2))
        part, lse = parts(items)
        options = {"logits_ptr": self.logits, "logits_row": self.tokens} if tells else {}
        if turned:
            options |= {"freq_ptr": self.rope.inv_freq, "turn_ptr": turns(self.rope, size.tile + 1), "scaling": 1.0, "HALF": D // 2, "PAIRS": D // 2}

        def run() -> None:
            for layer in range(LAYERS):
                (made.attend_rows_and_tell if tells else made.attend_rows)[(min(items, size.programs * 132),)](
                    *self.layers.of(layer), part_ptr=part, lse_ptr=lse, scale2=0.1275, table_row=self.layers.table.stride(0),
                    entries=self.rows, EP=tile_of(self.rows), H=H, G=G, GP=16, D=D, DP=D, PAGE=PAGE, CHUNK=size.chunk, TILE=size.tile, STAGES=size.stages,
                    EXACT=False, **options, num_warps=size.warps,
                )  # fmt: skip

        return timed(run) / LAYERS * 1e3


def main() -> None:
    rows, tokens = (int(text) for text in sys.argv[1:3] or ("8", "8192"))
    turning, tuning, plain, turned = Turning(rows, tokens), Tuning(132), kernels_of("original"), kernels_of("cache")
    for tells, size in ((False, tuning.whole), (True, tuning.weighing)):
        beside = turning.microseconds(plain, size, turned=False, tells=tells)
        print(f"{rows} x {tokens}, logits told {tells}: plain {beside:.1f} us", flush=True)
        for each in [tuning.weighing, *SWEEP]:
            try:
                found = turning.microseconds(turned, each, turned=True, tells=tells)
            except (RuntimeError, OutOfResources) as error:
                print("   skipped", each, str(error)[:80], flush=True)
                continue
            print(f"   {found:7.1f} us, {found / beside:.3f} of plain: {each}", flush=True)


if __name__ == "__main__":
    main()
