"""`sparsec explain`: what follows from a method before anything runs, and why; with a model, in bytes."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from sparsec.commands.arguments import add_param_argument, parse_params
from sparsec.failures import CommandError

EPILOG = """examples:
  sparsec explain my.sparse                                    every derived fact, with the spec line that decides it
  sparsec explain my.sparse --model smollm2-135m --batch 8     bytes held and read, and the best possible gain
  sparsec explain my.sparse --param budget=512 --format json
  sparsec explain my.sparse --target triton                    which steps are kernels on a CUDA device, and why others are not
  sparsec explain my.sparse --format svg --out graph.svg       the hook graph, drawn
  sparsec explain --table                                      all shipped methods side by side (Markdown)

Instead of a file, give the name of a shipped method (`sparsec methods` lists them)."""
LENGTHS = (4096, 32768, 131072)
CONTEXT = 32768


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "explain", help="what follows from a method, and why", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("method", metavar="METHOD|FILE", nargs="?", help="a shipped method (see `sparsec methods`) or a .sparse file")
    parser.add_argument("--table", action="store_true", help="one row per shipped method, as in methods/README.md")
    add_param_argument(parser)
    parser.add_argument("--model", help="built-in name, shape preset, local Hugging Face directory or .gguf file (only its config is read)")
    parser.add_argument("--context", type=_positive, help=f"tokens held in a decode step (default {CONTEXT}, or the model's context if shorter)")
    parser.add_argument("--batch", type=_positive, default=8, help="requests in a decode step (default 8)")
    parser.add_argument("--chunk", type=_positive, help="prefill chunk, for the peak (default: the whole prompt at once)")
    parser.add_argument("--target", choices=("triton", "torch"), help="also: what becomes of each step on a CUDA device")
    parser.add_argument("--format", choices=("text", "json", "dot", "mermaid", "svg"), default="text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to a file")
    return parser


def run(args: argparse.Namespace) -> int:
    if args.table and args.method is not None:
        raise CommandError("--table shows every shipped method: give it alone, or a METHOD without it", exit_code=2)
    if not args.table and args.method is None:
        raise CommandError("explain wants a METHOD or a FILE, or --table for all shipped methods", exit_code=2)
    text = _table() if args.table else _explain(args)
    if args.out is None:
        print(text, end="")
        return 0
    try:
        args.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {args.out}: {error.strerror}") from error
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 1")
    return value


def _table() -> str:
    from sparsec.dsl.source import shipped_methods
    from sparsec.graph.overview import markdown
    from sparsec.pipeline import Compilation

    return markdown([Compilation.load(name).facts for name in shipped_methods()])


def _explain(args: argparse.Namespace) -> str:
    from sparsec.codegen.target_report import report_text, target_report
    from sparsec.dsl import tree as t
    from sparsec.graph.build import build_graph
    from sparsec.graph.printer import explain_text
    from sparsec.graph.values import resolve
    from sparsec.model_facts import load_model_facts

    given = parse_params(args.param)
    model = load_model_facts(args.model) if args.model is not None else None
    compilation = _compilation(args.method, given, model, args.target)
    if args.format in ("dot", "mermaid", "svg"):
        return _drawn(build_graph(compilation.special), args.format)
    context = args.context or (min(CONTEXT, model.context) if model is not None else CONTEXT)
    params = resolve(compilation.checked, given, model.names(), context) if model is not None else {}
    estimate = _estimate(compilation, params, model, context, args) if model is not None else None
    report = target_report(compilation, _outline(args.model)) if args.target is not None else None
    if args.format == "json":
        return _json(compilation, params, estimate, report)
    cites = tuple(item.text for item in compilation.checked.method.of(t.Cite))
    text = explain_text(compilation.facts, compilation.source.path, cites, params, estimate)
    return text if report is None else f"{text}\n{report_text(report, args.method)}"


def _outline(model: str | None):
    """What the model's config says of its layers."""
    if model is None:
        return None
    from sparsec_runtime.models.errors import ModelError
    from sparsec_runtime.models.outline import load_outline

    try:
        return load_outline(model)
    except ModelError as error:
        raise CommandError(str(error)) from error


def _compilation(method: str, given: dict[str, str], model, target: str | None):
    """The compiled front half; a param that the method lacks, or a value out of range, is refused here, before anything is derived."""
    from sparsec.dsl.source import SourceError
    from sparsec.graph.values import refuse_wrong
    from sparsec.pipeline import Compilation

    try:
        compilation = Compilation.load(method, given, model, **({} if target is None else {"target": target}))
    except SourceError as error:
        raise CommandError(str(error)) from error
    refuse_wrong(compilation.checked, given, compilation.model)
    return compilation


def _estimate(compilation, params, model, context: int, args: argparse.Namespace):
    from sparsec.graph.estimate import Estimator

    lengths = tuple(length for length in LENGTHS if length <= model.context)
    lengths += (model.context,) if model.context < LENGTHS[-1] and model.context not in lengths else ()
    return Estimator(compilation.special, params, model).estimate(context, args.batch, lengths, args.chunk)


def _drawn(graph, form: str) -> str:
    from sparsec.graph.dot import to_dot
    from sparsec.graph.mermaid import to_mermaid
    from sparsec.graph.picture import picture
    from sparsec.graph.svg import to_svg

    return {"dot": to_dot, "mermaid": to_mermaid, "svg": to_svg}[form](picture(graph))


def _json(compilation, params: dict[str, object], estimate, report) -> str:
    from sparsec.graph.build import build_graph
    from sparsec.graph.serial import graph_data

    page = {
        "facts": json.loads(compilation.facts.to_json()),
        "graph": graph_data(build_graph(compilation.special)),
        "params": {name: sorted(value) if isinstance(value, frozenset) else value for name, value in params.items()},
        "estimate": None if estimate is None else {**asdict(estimate), "ideal_gain": estimate.traffic.gain},
    }
    if report is not None:
        page["target"] = asdict(report)
    return json.dumps(page, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
