"""`sparsec compile`: from a spec to an artifact that the runtime loads without the compiler; or to any stage on the way."""

from __future__ import annotations

import argparse
from pprint import pformat

from sparsec.commands.arguments import add_method_arguments, parse_params
from sparsec.data.help import epilog
from sparsec.failures import CommandError


STAGES = ("syntax", "graph", "facts", "plan", "kernels", "decode", "manager")


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "compile", help="generate the code of a method", description=__doc__, epilog=epilog("compile"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_method_arguments(parser)
    parser.add_argument(
        "--target", choices=("triton", "torch"), default="triton",
        help="triton (default): torch functions for any device, and kernels of the decode step for CUDA; torch: the functions alone",
    )  # fmt: skip
    parser.add_argument("--emit", choices=STAGES, help="print one stage, and write nothing")
    parser.add_argument("--out", metavar="DIR", help="write the artifact into a new or empty directory, not into the cache")
    parser.add_argument("--model", help="check against a model's layers and heads (only its config is read)")
    return parser


def run(args: argparse.Namespace) -> int:
    if args.emit is not None and args.out is not None:
        raise CommandError("--emit prints one stage, --out writes the artifact: give one of the two", exit_code=2)
    compilation = _compilation(args)
    if args.emit is not None:
        print(_stage(compilation, args.emit), end="")
        return 0
    artifact = compilation.write(args.out) if args.out is not None else compilation.artifact
    print(_facts(compilation), end="")
    print(f"\nartifact {artifact.path} ({'written' if artifact.fresh else 'found in the cache'}, key {artifact.key})")
    return 0


def _compilation(args: argparse.Namespace):
    from sparsec.dsl.source import SourceError
    from sparsec.graph.values import refuse_wrong
    from sparsec.model_facts import load_model_facts
    from sparsec.pipeline import Compilation

    given = parse_params(args.param)
    model = load_model_facts(args.model) if args.model is not None else None
    try:
        compilation = Compilation.load(args.method, given, model, args.target)
    except SourceError as error:
        raise CommandError(str(error)) from error
    refuse_wrong(compilation.checked, given, compilation.model)
    return compilation


def _stage(compilation, stage: str) -> str:
    from sparsec.graph.serial import graph_json

    match stage:
        case "graph":
            return graph_json(compilation.graph)
        case "facts":
            return compilation.facts.to_json()
        case "kernels":
            return compilation.kernels
        case "decode":
            return _decode(compilation)
        case "manager":
            return compilation.manager
        case "plan":
            return plan_text(compilation.plan)
    return pformat(compilation.syntax, width=120, compact=True) + "\n"


def _decode(compilation) -> str:
    if compilation.decode is not None:
        return compilation.decode
    if compilation.target != "triton":
        raise CommandError("the torch target has no decode kernels: leave --target out", exit_code=2)
    raise CommandError("\n".join(("no decode kernels; the torch functions run the step:", *(f"  {reason}" for reason in compilation.skeletons.reasons))))


def plan_text(plan) -> str:
    """The plan for people: ops in prefix form with their index letters."""
    layout = [f"  {field} = {getattr(plan.layout, field)!r}" for field in plan.layout.__slots__]
    lines = [f"method {plan.method}", "layout", *layout, "params", *(f"  {param}" for param in plan.params)]
    for binding in plan.bindings:
        guard = f" for {binding.guard}" if binding.guard is not None else ""
        lines.append(f"{binding.function} on {', '.join(binding.hooks)}{guard} (line {binding.line})")
        lines += [f"  {step}" for step in binding.steps]
    return "\n".join(lines + [f"{count}" for count in plan.counts]) + "\n"


def _facts(compilation) -> str:
    from sparsec.dsl import tree as t
    from sparsec.graph.printer import explain_text

    cites = tuple(item.text for item in compilation.checked.method.of(t.Cite))
    return explain_text(compilation.facts, compilation.source.path, cites, {}, None)
