"""Decode rows of benchmarks/README.md: python benchmarks/decode.py --run ID --out FILE "METHOD CONTEXT BATCH [name=value ...]" ...

One process, one model with random weights; rows are appended to FILE as they come, so a run that is cut short can go on.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "runtime")]

import torch  # noqa: E402
from sparsec_runtime.models.loading import load_model  # noqa: E402

from sparsec.bench.decode import Workload, measure_decode  # noqa: E402
from sparsec.bench.machine import facts  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="llama-3.1-8b-49k")
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("rows", nargs="+")
    args = parser.parse_args()
    model = load_model(args.shape, device="cuda", load_format="dummy")
    found = facts(args.run, " ".join(sys.argv))
    for text in args.rows:
        method, context, batch, *params = text.split()
        work = Workload(
            method, dict(param.split("=", 1) for param in params), int(context), int(batch), repetitions=args.repetitions, steps=args.steps
        )
        begin = time.time()
        try:
            row = measure_decode(work, model)
        except (RuntimeError, AssertionError, ValueError) as error:
            traceback.print_exc()
            print(f"FAILED {text}: {error}", flush=True)
            continue
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        with args.out.open("a") as file:
            file.write(json.dumps({**found, **row}) + "\n")
        profile = row.pop("profile")
        print(json.dumps({key: row[key] for key in (
            "method", "context", "batch", "ms_per_step", "each", "tok_s", "floor_ms", "ratio", "host_ms", "bulk_steps", "kernels", "kv_bytes_per_request",
        )}), round(time.time() - begin, 1), "s", flush=True)  # fmt: skip
        for name, count, microseconds in profile[:5]:
            print(f"    {microseconds:9.1f} us {count:4d} {microseconds / count:8.2f} us each  {name}", flush=True)


if __name__ == "__main__":
    main()
