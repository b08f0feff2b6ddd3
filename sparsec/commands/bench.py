"""`sparsec bench`: what a method takes on a CUDA device, beside the memory floor; rows of results go to a file that can be continued and drawn."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sparsec.commands.arguments import add_param_argument, parse_params
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
    _add_prefill(kinds.add_parser("prefill", help="prompt tokens a second, and what chunks take"))
    capacity = "the largest batch that fits, and its throughput beside dense"
    _add_capacity(kinds.add_parser("capacity", help=capacity, description=f"{capacity}; there is no --batch: the batch is what it searches"))
    _add_kernels(kinds.add_parser("kernels", help="the gates of single kernels, as a table"))
    _add_plot(kinds.add_parser("plot", help="draw rows of a file as a PNG"))
    return parser


def run(args: argparse.Namespace) -> int:
    return {"decode": _decode, "prefill": _prefill, "capacity": _capacity, "kernels": _kernels, "plot": _plot}[args.what](args)


# ---- arguments -----------------------------------------------------------------------------------


def _add_decode(parser: argparse.ArgumentParser) -> None:
    _add_method(parser)
    _add_size(parser, context=32768)
    parser.add_argument("--batch", type=int, default=8, help="requests that decode together (default 8)")
    parser.add_argument(
        "--fill", choices=("synthetic", "prompt"), default="synthetic",
        help="synthetic: random K, V and states at the lengths after the prompts; prompt: a real prefill of random ids (default synthetic)",
    )  # fmt: skip
    _add_window(parser)
    _add_file(parser)


def _add_prefill(parser: argparse.ArgumentParser) -> None:
    _add_method(parser)
    _add_size(parser, context=32768)
    parser.add_argument("--batch", type=int, default=1, help="prompts, computed one after another, whose requests stay until the last one's end (default 1)")
    parser.add_argument("--lengths", type=int, default=0, help="further prompts, of random lengths up to --context (default 0)")
    parser.add_argument("--repetitions", type=int, default=3, help="prompts of the whole context, of which the median counts (default 3)")
    _add_file(parser)


def _add_capacity(parser: argparse.ArgumentParser) -> None:
    _add_method(parser)
    _add_size(parser, context=131072)
    parser.add_argument("--new", type=int, default=2048, help="output tokens that each resident has room for (default 2048)")
    _add_window(parser)
    _add_file(parser)


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", metavar="SUBSTR", help="gates whose name holds this, in any case")
    parser.add_argument("--minutes", type=float, default=9.0, help="no gate begins after so many minutes (default 9)")
    _add_model(parser)
    _add_file(parser)


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="rows of results, a line of JSON each")
    parser.add_argument("--run", dest="run_id", metavar="ID", help="rows of this run (default: that of the last measured row)")
    parser.add_argument("--out", type=Path, required=True, metavar="PNG")


def _add_method(parser: argparse.ArgumentParser) -> None:
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument("method", metavar="METHOD|FILE", nargs="?", default=argparse.SUPPRESS, help="a shipped method (see `sparsec methods`) or a .sparse file")
    named.add_argument("--method", dest="method", metavar="METHOD|FILE", default=argparse.SUPPRESS, help="the same")
    add_param_argument(parser)


def _add_window(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repetitions", type=int, default=3, help="windows, of which the median counts (default 3)")
    parser.add_argument("--steps", type=int, default=256, help="steps of a window (default 256)")


def _add_size(parser: argparse.ArgumentParser, context: int) -> None:
    parser.add_argument("--context", type=int, default=context, help=f"prompt tokens of each request (default {context})")
    parser.add_argument("--chunk", type=int, default=8192, help="prompt tokens of one forward (default 8192)")
    _add_model(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default=SHAPE, help=f"the shape of random weights, see `sparsec models` (default {SHAPE})")
    parser.add_argument("--load-format", default="dummy", metavar="dummy|DIR", help="random weights of --config, or a directory of a model (default dummy)")


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", dest="run_id", metavar="ID", default="unnamed", help="an id that the rows of several commands share")
    parser.add_argument("--out", type=Path, help="append rows to this file, a line of JSON each; a row of the same --run is not measured again")


# ---- kinds ---------------------------------------------------------------------------------------


def _decode(args: argparse.Namespace) -> int:
    from sparsec.bench.record import text_of

    def measure(work: Workload, model) -> Row:
        from sparsec.bench.decode import measure_decode

        return measure_decode(work, model)

    _refuse_wide(args.batch)
    work = _workload(args, batch=args.batch, fill=args.fill, repetitions=args.repetitions, steps=args.steps)
    print(text_of(_row(args, work.named("decode", _config(args), args.run_id), work, measure)))
    return 0


def _prefill(args: argparse.Namespace) -> int:
    from sparsec.bench.record import text_of

    def measure(work: Workload, model) -> Row:
        from sparsec.bench.prefill import measure_prefill

        return measure_prefill(work, model, args.lengths)

    if args.lengths < 0:
        raise CommandError(f"--lengths {args.lengths} is out of range: at least 0", exit_code=2)
    work = _workload(args, batch=args.batch, fill="prompt", repetitions=args.repetitions)
    print(text_of(_row(args, {**work.named("prefill", _config(args), args.run_id), "lengths": args.lengths}, work, measure)))
    return 0


def _capacity(args: argparse.Namespace) -> int:
    """The method's row and dense's, which stands in the same file after the first time."""
    from dataclasses import replace

    from sparsec.bench.record import text_of

    def measure(work: Workload, model) -> Row:
        from sparsec.bench.capacity import measure_capacity

        return measure_capacity(work, model, args.new)

    work = _workload(args, batch=1, fill="prompt", repetitions=args.repetitions, steps=args.steps)
    dense, rows = replace(work, method="dense", params={}), []
    for one in (work, dense) if work != dense else (dense,):
        rows.append(_row(args, {**one.named("capacity", _config(args), args.run_id), "batch": "largest", "reserved_tokens": args.new}, one, measure))
        print(text_of(rows[-1]), flush=True)
    if len(rows) > 1:
        mine, beside = rows
        print(f"{mine['tok_s'] / beside['tok_s']:.1f}x the throughput of dense, with {mine['residents'] / beside['residents']:.1f}x its residents")
    return 0


def _kernels(args: argparse.Namespace) -> int:
    """Measures the gates that the run lacks, and prints all that it has."""
    import time

    from sparsec.bench.gates import aligned, shipped_gates
    from sparsec.bench.record import Recorder

    begin, recorder, bench = time.monotonic(), Recorder(args.out, args.run_id), None
    gates = [gate for gate in shipped_gates() if args.only.lower() in gate.name.lower()]
    if not gates:
        names = "".join(f"\n  {gate.name}" for gate in shipped_gates())
        raise CommandError(f"--only {args.only}: no gate's name holds this; the gates are{names}", exit_code=2)
    named = {gate.name: gate.named(_config(args), args.run_id) for gate in gates}
    rows = {name: row for name, fields in named.items() if (row := recorder.last(fields)) is not None}
    missing = [gate for gate in gates if gate.name not in rows or "error" in rows[gate.name]]
    for gate in sorted(missing, key=lambda gate: gate.name in rows):  # those that failed before come last
        if time.monotonic() - begin >= 60 * args.minutes:
            break
        if bench is None:
            bench = _gate_bench(args)
        rows[gate.name] = recorder.measure(named[gate.name], lambda gate=gate, bench=bench: bench.measure(gate))
    print(aligned(gates, rows))
    return 0


def _gate_bench(args: argparse.Namespace):
    model = _load(args)
    from sparsec.bench.kernels import GateBench

    return GateBench(model)


def _plot(args: argparse.Namespace) -> int:
    from sparsec.bench.plot import MissingLibrary, draw
    from sparsec.bench.rows import read_rows

    if not args.file.is_file():
        raise CommandError(f"there is no file {args.file}", exit_code=2)
    try:
        draw(read_rows(args.file), args.out, args.run_id)
    except MissingLibrary as error:
        raise CommandError(str(error), exit_code=3) from error
    except ValueError as error:
        raise CommandError(f"{args.file}: {error}", exit_code=2) from error
    except OSError as error:
        raise CommandError(f"cannot write {args.out}: {error.strerror}", exit_code=3) from error
    print(f"wrote {args.out}")
    return 0


def _workload(args: argparse.Namespace, **sizes: object) -> Workload:
    from sparsec.bench.workload import Workload

    for name in ("context", "batch", "chunk", "repetitions", "steps", "new"):
        if getattr(args, name, 1) < 1:
            raise CommandError(f"--{name} {getattr(args, name)} is out of range: at least 1", exit_code=2)
    return Workload(args.method, parse_params(args.param), args.context, chunk=args.chunk, **sizes)


def _refuse_wide(batch: int) -> None:
    from sparsec_runtime.gpu.graphs import BUCKETS

    if batch > BUCKETS[-1]:
        raise CommandError(f"--batch {batch} is out of range: a graph decodes at most {BUCKETS[-1]} requests", exit_code=2)


def _config(args: argparse.Namespace) -> str:
    return args.config if args.load_format == "dummy" else Path(args.load_format).resolve().name


def _row(args: argparse.Namespace, named: dict[str, object], work: Workload, measure: Callable[..., Row]) -> Row:
    """The row of --out that is this measurement, or a new one."""
    from sparsec.bench.record import Recorder

    recorder = Recorder(args.out, args.run_id)
    found = recorder.find(named)
    if found is not None:
        print(f"measured before in run {args.run_id}, not again: {work}")
        return found
    row = recorder.measure(named, lambda: measure(work, _load(args)))
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
