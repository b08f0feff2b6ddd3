"""`sparsec verify`: test a method's properties, and every `ensure` of its author, on generated traces. Needs no model and no GPU."""

from __future__ import annotations

import argparse

from sparsec.commands.arguments import add_method_arguments, parse_params
from sparsec.data.help import epilog
from sparsec.failures import CommandError

DEFAULT_SEEDS = 6
TARGET_HELP = "who runs the traces (default all: reference and torch); triton: the decode kernels, on CUDA"


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "verify", help="test a method's properties on generated traces", description=__doc__, epilog=epilog("verify"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_method_arguments(parser)
    parser.add_argument("--target", choices=("reference", "torch", "triton", "all"), default="all", help=TARGET_HELP)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=DEFAULT_SEEDS, metavar="N", help=f"seeds 0 to N - 1 (default {DEFAULT_SEEDS})")
    which.add_argument("--seed", type=int, metavar="S", help="this seed alone")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one object per property and line")
    return parser


def _need_kernels() -> None:
    import torch

    from sparsec.replay_triton import interpreting

    if not torch.cuda.is_available() and not interpreting():
        raise CommandError("--target triton: there is no CUDA here (TRITON_INTERPRET=1 runs the kernels in Triton's interpreter, slowly)", exit_code=2)


def run(args: argparse.Namespace) -> int:
    from sparsec.verify.report import summary, to_json, to_text
    from sparsec.verify.runner import TARGETS, verify
    from sparsec.verify.subject import Subject

    if args.seeds < 1:
        raise CommandError(f"--seeds {args.seeds}: at least 1", exit_code=2)
    if args.seed is not None and args.seed < 0:
        raise CommandError(f"--seed {args.seed}: at least 0", exit_code=2)
    if args.target == "triton":
        _need_kernels()
    subject = Subject.load(args.method, parse_params(args.param))
    seeds = range(args.seeds) if args.seed is None else (args.seed,)
    outcomes = verify(subject, seeds, TARGETS if args.target == "all" else (args.target,))
    for outcome in outcomes:
        print(to_json(outcome) if args.format == "json" else to_text(outcome, subject.path))
    if args.format == "text":
        print(summary(subject.name, outcomes))
    return 1 if any(outcome.failed for outcome in outcomes) else 0
