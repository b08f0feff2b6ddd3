"""`sparsec new`: a commented skeleton of a method, which checks, runs and can be edited from there."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path

from sparsec.failures import CommandError


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "new", help="write a commented skeleton", description=__doc__,
        epilog="example: sparsec new mymethod && sparsec check mymethod.sparse && sparsec run mymethod.sparse",
    )  # fmt: skip
    parser.add_argument("name", help="name of the method: letters, digits and _")
    parser.add_argument("--out", type=Path, help="file to write (default NAME.sparse in this folder)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    return parser


def run(args: argparse.Namespace) -> int:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", args.name):
        raise CommandError(f"{args.name!r} is not a name: letters, digits and _, not starting with a digit", exit_code=2)
    path = args.out or Path(f"{args.name}.sparse")
    if path.exists() and not args.force:
        raise CommandError(f"{path} exists: choose another name, or --force to overwrite it", exit_code=2)
    text = files("sparsec.data").joinpath("skeleton.sparse").read_text(encoding="utf-8")
    path.write_text(text.replace("method skeleton", f"method {args.name}"), encoding="utf-8")
    print(f"wrote {path}; next: sparsec check {path}, sparsec explain {path}, sparsec run {path}")
    return 0
