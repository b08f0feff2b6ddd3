"""`sparsec bench`: decode throughput of a method on a CUDA device, beside the memory floor of its step."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sparsec.commands.arguments import add_method_arguments, parse_params
from sparsec.data.help import epilog
from sparsec.failures import CommandError


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "bench", help="measure decode on a CUDA device", description=__doc__, epilog=epilog("bench"), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("decode",))
    add_method_arguments(parser)
    parser.add_argument("--context", type=int, default=32768, help="prompt tokens of each request (default 32768)")
    parser.add_argument("--batch", type=int, default=8, help="requests that decode together (default 8)")
    parser.add_argument("--config", default="llama-3.1-8b-49k", help="a shape, see `sparsec models` (default llama-3.1-8b-49k)")
    parser.add_argument("--load-format", choices=("dummy",), default="dummy", help="random weights of the shape")
    parser.add_argument("--fill", choices=("synthetic",), default="synthetic", help="random K and V, no prefill")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=256, help="steps of a window (default 256)")
    parser.add_argument("--run", default="unnamed", help="an id that rows of one run share")
    parser.add_argument("--out", type=Path, help="append the row to this file, as one line of JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    import torch

    if not torch.cuda.is_available():
        raise CommandError("bench measures a CUDA device and there is none here", exit_code=3)
    from sparsec_runtime.gpu.graphs import CannotCapture
    from sparsec_runtime.models.errors import ModelError
    from sparsec_runtime.models.loading import load_model

    from sparsec.bench.decode import Workload, measure_decode
    from sparsec.bench.machine import facts

    work = Workload(args.method, parse_params(args.param), args.context, args.batch, repetitions=args.repetitions, steps=args.steps)
    try:
        row = measure_decode(work, load_model(args.config, device="cuda", load_format="dummy"))
    except (ModelError, CannotCapture) as error:
        raise CommandError(str(error), exit_code=3) from error
    except torch.OutOfMemoryError as error:
        raise CommandError(f"{args.batch} requests of {args.context} tokens do not fit this device: lower --batch or --context", exit_code=3) from error
    if args.out is not None:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**facts(args.run, " ".join(sys.argv)), **row}) + "\n")
    print(
        f"{row['method']}, {args.context} x {args.batch}: {row['ms_per_step']} ms/step, {row['tok_s']} tok/s; floor {row['floor_ms']} ms, "
        f"ratio {row['ratio']}; {row['kv_bytes_per_request'] / 2**20:.0f} MiB of KV a request"
    )
    return 0
