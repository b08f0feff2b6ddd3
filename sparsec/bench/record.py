"""Measures a row once: found in the file, or measured and appended with where it was measured; a refusal becomes a row with its reason."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from sparsec.bench.rows import Row, append_row, find_row, read_rows


class Recorder:
    """file: None measures without keeping."""

    def __init__(self, file: Path | None, run: str) -> None:
        self.file, self.run = file, run

    def find(self, named: Mapping[str, object]) -> Row | None:
        """The row of this measurement, if it was measured before; a row with an error is no measurement."""
        row = self.last(named)
        return row if row is not None and "error" not in row else None

    def last(self, named: Mapping[str, object]) -> Row | None:
        """The same; failing that, the last row that says why it could not be measured."""
        return None if self.file is None else find_row(read_rows(self.file), named)

    def measure(self, named: Mapping[str, object], measure: Callable[[], Row]) -> Row:
        """Runs it and appends the row: with `error` in place of figures where the method or the batch cannot run on this device, or a check failed."""
        import torch
        from sparsec_runtime.gpu.graphs import CannotCapture
        from sparsec_runtime.layout import LayoutError
        from sparsec_runtime.memory import OutOfPages
        from sparsec_runtime.params import ParamError
        from triton.errors import TritonError

        from sparsec.bench.machine import facts
        from sparsec.bench.room import DoesNotFit

        begin = time.perf_counter()
        try:
            found = measure()
        except CannotCapture as reason:
            found = {"error": f"no graph decodes this method: {reason}"}
        except (ParamError, LayoutError, DoesNotFit, OutOfPages) as reason:
            found = {"error": str(reason)}
        except TritonError as reason:
            found = {"error": f"a kernel does not compile or does not fit this device: {reason}"}
        except AssertionError as reason:
            place = traceback.extract_tb(reason.__traceback__)[-1]
            found = {"error": f"a check failed ({Path(place.filename).name}:{place.lineno}): {reason}"}
        except torch.OutOfMemoryError as reason:
            found = {"error": f"it does not fit this device: lower the batch or the context ({str(reason).splitlines()[0]})"}
        row = {**named, **facts(self.run, " ".join(sys.argv)), **found, "seconds": round(time.perf_counter() - begin, 1)}
        if self.file is not None:
            append_row(self.file, row)
        return row


def text_of(row: Row) -> str:
    """A measured row, for people."""
    return {"decode": _decode, "prefill": _prefill, "capacity": _capacity}[str(row["what"])](row)


def _decode(row: Row) -> str:
    return (
        f"{row['method']}, {row['context']} x {row['batch']}: {row['ms_per_step']} ms/step, {row['tok_s']} tok/s; floor {row['floor_ms']} ms, "
        f"ratio {row['ratio']}; {_held(row)}, {row['kernels']} kernels a step, the device idle for {row['idle_ms'] * 1e3:.0f} us between steps{_prompts(row)}"
    )


def _capacity(row: Row) -> str:
    return (
        f"{row['method']}, {row['context']} tokens and {row['reserved_tokens']} new ones each: {row['residents']} residents, {row['ms_per_step']} ms/step, "
        f"{row['tok_s']} tok/s; floor {row['floor_ms']} ms, ratio {row['ratio']}; {_held(row)}{_prompts(row)}"
    )


def _held(row: Row) -> str:
    return (
        f"{row['kv_bytes'] / 2**20:.0f} MiB of KV and {row['state_bytes'] / 2**20:.0f} MiB of states a request, {row['peak_bytes'] / 2**30:.1f} GiB at the peak"
    )


def _prompts(row: Row) -> str:
    """Of a row whose prompts were computed."""
    if "prefill_ms" not in row:
        return ""
    whole = f"; prompts, warm-up and window {row['end_to_end_s']:.2f} s" if "end_to_end_s" in row else ""
    return f"; a prompt {row['prefill_ms']:.0f} ms, {row['prefill_tok_s']:.0f} tok/s{whole}"


def _prefill(row: Row) -> str:
    first = (
        f"{row['method']}, a prompt of {row['context']} in chunks of {row['chunk']}, batch {row['batch']}: {row['tok_s']:.0f} tok/s, {row['prompt_ms']:.0f} ms; "
        f"floor {row['floor_ms']:.0f} ms (useful work at the matmul rate, {row['matmul_tflops']} TFLOP/s), ratio {row['ratio']}: {row['tflops']} TFLOP/s, "
        f"{row['share']:.1%} of that rate; {row['kv_bytes'] / 2**20:.0f} MiB of KV a request, {row['peak_bytes'] / 2**30:.1f} GiB at the peak; "
        f"longest chunk {row['worst_ratio']}x the median after the same context"
    )
    return "\n".join([first, *map(_chunk, row["chunks"])])


def _chunk(times: Row) -> str:
    shorter = "" if times["shorter_ms"] is None else f", shorter ones at most {times['shorter_ms']} ms"
    return f"  after {times['context']:>7}: {times['count']} whole chunks, median {times['median_ms']} ms, longest {times['worst_ms']} ms{shorter}"
