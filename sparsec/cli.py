"""The `sparsec` command: one subcommand per module of `sparsec.commands`; this file only finds it and reports failures.

Exit codes: 0 done; 1 the spec has errors, or a property or comparison failed; 2 the command line is wrong; 3 it could not
be done here (model missing, no memory, offline); 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from sparsec.data.help import epilog
from sparsec.diagnostics import SpecError
from sparsec.failures import CommandError

COMMANDS = ("run", "check", "fmt", "explain", "compile", "verify", "methods", "models", "pull", "new", "bench")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparsec", description="Compile and run sparse-attention methods written in .sparse files.",
        epilog=epilog("sparsec"), formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--debug", action="store_true", help="show tracebacks of our own and of foreign failures")
    parser.add_argument("--version", action="version", version=f"sparsec {_version()}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"sparsec.commands.{name}")
        module.add_parser(subparsers).set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments  # accepted before and after the subcommand
    args = build_parser().parse_args([argument for argument in arguments if argument != "--debug"])
    try:
        return args.run(args)
    except SpecError as error:
        if debug:
            raise
        _print_diagnostics(error)
        return 1
    except CommandError as error:
        if debug:
            raise
        print(f"sparsec {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's last flush is quiet
        return 0


def _print_diagnostics(error: SpecError) -> None:
    from sparsec.render import render_all

    print(render_all(error.diagnostics, error.source, color=sys.stderr.isatty()), file=sys.stderr)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sparsec")
    except PackageNotFoundError:
        return "0 (not installed)"


if __name__ == "__main__":
    sys.exit(main())
