"""`sparsec check`: every mistake of every file, with its place and a way out. Imports no torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from sparsec.commands.arguments import add_param_argument, parse_params
from sparsec.diagnostics import Diagnostic, Severity, Source, SpecError
from sparsec.dsl.source import load_source
from sparsec.render import in_source_order, render, to_json

EPILOG = """examples:
  sparsec check my.sparse
  sparsec check methods/*.sparse                   all the shipped ones; `sparsec check NAME` finds one by its name
  sparsec check my.sparse --model smollm2-135m     also what depends on the number of layers and heads
  sparsec check my.sparse --format json            one JSON object per diagnostic and line, for editors and agents
  sparsec check - < my.sparse

Exit code: 0 no errors (there may be warnings), 1 errors, 2 wrong usage."""

_SHOWN = 100  # diagnostics of one file that are printed as text


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "check", help="explain every mistake of a spec", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("files", nargs="+", metavar="FILE", help="a .sparse file, a shipped method's name, or - for standard input")
    parser.add_argument("--model", help="check against this model's layers and heads: a built-in name, a directory or a .gguf file")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one object per diagnostic and line")
    add_param_argument(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    params = parse_params(args.param)
    model = _model_facts(args.model)
    found: list[Diagnostic] = []
    for name in args.files:
        source, diagnostics = diagnose(name, model, params)
        _print(diagnostics, source, args.format)
        found += diagnostics
    if args.format == "text":
        print(summary(len(args.files), found), file=sys.stderr)
    return 1 if any(one.severity is Severity.ERROR for one in found) else 0


def diagnose(name: str, model: Mapping[str, int | float] | None, params: Mapping[str, str]) -> tuple[Source, list[Diagnostic]]:
    """The file and everything there is to say about it, in source order."""
    from sparsec.dsl.check import check
    from sparsec.dsl.parser import parse

    try:
        source = load_source(name)
        checked = check(parse(source), source, model)
        if params:
            _check_values(source, model, params)
    except SpecError as error:
        return error.source, in_source_order(error.diagnostics)
    return source, in_source_order(checked.warnings)


def summary(files: int, found: list[Diagnostic]) -> str:
    errors = sum(one.severity is Severity.ERROR for one in found)
    warnings = sum(one.severity is Severity.WARNING for one in found)
    return f"{_count(files, 'file')}, {_count(errors, 'error')}, {_count(warnings, 'warning')}"


def _check_values(source: Source, model: Mapping[str, int | float] | None, params: Mapping[str, str]) -> None:
    """Also what a compilation with these values would refuse."""
    from sparsec.graph.values import refuse_wrong
    from sparsec.pipeline import Compilation

    compilation = Compilation(source, params, model)
    refuse_wrong(compilation.checked, dict(params), model)
    assert compilation.special is not None, "specialisation gives a checked method or raises"


def _model_facts(model: str | None) -> Mapping[str, int | float] | None:
    if model is None:
        return None
    from sparsec.model_facts import load_model_facts

    return load_model_facts(model).names()


def _print(diagnostics: list[Diagnostic], source: Source, form: str) -> None:
    if form == "json":
        for one in diagnostics:
            print(to_json(one, source))
        return
    color = sys.stdout.isatty()
    for one in diagnostics[:_SHOWN]:
        print(render(one, source, color) + "\n")
    if len(diagnostics) > _SHOWN:
        print(f"... and {len(diagnostics) - _SHOWN} more in {source.path}\n")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
