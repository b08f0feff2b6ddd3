"""`sparsec bench`: what a method takes on a CUDA device, beside the memory floor; rows of results go to a file that can be continued and drawn."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sparsec.commands.arguments import add_method_arguments, parse_params
from sparsec.data.help import epilog
from sparsec.failures import CommandError

if TYPE_CHECKING:
    from sparsec.bench.rows import Row
    from sparsec.bench.workload import Workload

SHAPE = "llama-3.1-8b-49k"


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "bench", help="measure a method on a CUDA device", description=__doc__, epilog=epilog("bench"), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    _add_decode(kinds.add_parser("decode", help="milliseconds a step with the whole batch resident"))
    return parser


def run(args: argparse.Namespace) -> int:
    return {"decode": _decode}[args.what](args)


# ---- arguments -----------------------------------------------------------------------------------


def _add_decode(parser: argparse.ArgumentParser) -> None:
    add_method_arguments(parser)
    _add_size(parser)
    parser.add_argument("--batch", type=int, default=8, help="requests that decode together (default 8)")
    parser.add_argument(
        "--fill", choices=("synthetic", "prompt"), default="synthetic",
        help="synthetic: random K, V and states at the lengths after the prompts; prompt: a real prefill of random ids (default synthetic)",
    )  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=3, help="windows, of which the median counts (default 3)")
    parser.add_argument("--steps", type=int, default=256, help="steps of a window (default 256)")
    _add_file(parser)


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", type=int, default=32768, help="prompt tokens of each request (default 32768)")
    parser.add_argument("--config", default=SHAPE, help=f"the shape of random weights, see `sparsec models` (default {SHAPE})")
    parser.add_argument("--load-format", default="dummy", metavar="dummy|DIR", help="random weights of --config, or a directory of a model (default dummy)")
    parser.add_argument("--chunk", type=int, default=8192, help="prompt tokens of one forward (default 8192)")


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", dest="run_id", metavar="ID", default="unnamed", help="an id that the rows of several commands share")
    parser.add_argument("--out", type=Path, help="append rows to this file, a line of JSON each; a row that is there under the same --run is not measured again")


# ---- kinds ---------------------------------------------------------------------------------------


def _decode(args: argparse.Namespace) -> int:
    from sparsec.bench.record import text_of

    def measure(work: Workload, model) -> Row:
        from sparsec.bench.decode import measure_decode

        return measure_decode(work, model)

    print(text_of(_row(args, _workload(args), measure)))
    return 0


def _workload(args: argparse.Namespace) -> Workload:
    from sparsec.bench.workload import Workload

    for name in ("context", "batch", "chunk", "repetitions", "steps"):
        if getattr(args, name) < 1:
            raise CommandError(f"--{name} {getattr(args, name)} is out of range: at least 1", exit_code=2)
    return Workload(
        args.method, parse_params(args.param), args.context, args.batch, args.fill, args.chunk, repetitions=args.repetitions, steps=args.steps
    )


def _row(args: argparse.Namespace, work: Workload, measure: Callable[..., Row]) -> Row:
    """The row of --out that is this measurement, or a new one."""
    from sparsec.bench.record import Recorder

    config = args.config if args.load_format == "dummy" else Path(args.load_format).name
    recorder = Recorder(args.out, args.run_id)
    found = recorder.find(work.named(args.what, config, args.run_id))
    if found is not None:
        print(f"measured before in run {args.run_id}, not again: {work}")
        return found
    row = recorder.measure(work.named(args.what, config, args.run_id), lambda: measure(work, _load(args)))
    if "error" in row:
        raise CommandError(str(row["error"]), exit_code=3)
    return row


def _load(args: argparse.Namespace):
    import torch
    from sparsec_runtime.models.errors import ModelError
    from sparsec_runtime.models.loading import load_model

    if not torch.cuda.is_available():
        raise CommandError("bench measures a CUDA device and there is none here", exit_code=3)
    try:
        if args.load_format == "dummy":
            return load_model(args.config, device="cuda", load_format="dummy")
        return load_model(args.load_format, device="cuda")
    except ModelError as error:
        raise CommandError(str(error), exit_code=3) from error
