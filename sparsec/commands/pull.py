"""`sparsec pull`: fetch a built-in model once, check its sum, convert it for fast loading."""

from __future__ import annotations

import argparse

from sparsec.failures import CommandError


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "pull", help="fetch a built-in model", description=__doc__, epilog="example: sparsec pull smollm2-135m"
    )
    parser.add_argument("model", help="a name from `sparsec models`")
    return parser


def run(args: argparse.Namespace) -> int:
    from sparsec_runtime.models.errors import ModelError
    from sparsec_runtime.models.pull import pull

    try:
        path = pull(args.model)
    except ModelError as error:
        raise CommandError(str(error)) from error
    print(f"{args.model} is ready in {path}")
    return 0
