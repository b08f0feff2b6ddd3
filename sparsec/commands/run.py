"""`sparsec run`: compile a method and generate with it on a real model, then say what it cost and what it held."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sparsec.commands.arguments import add_method_arguments, add_model_arguments, parse_params
from sparsec.data.help import epilog
from sparsec.failures import CommandError


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "run", help="generate text with a method", description=__doc__, epilog=epilog("run"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_method_arguments(parser)
    add_model_arguments(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="the user's message")
    prompt.add_argument("--prompt-file", type=Path, help="a text file with the user's message (- for standard input)")
    prompt.add_argument("--chat", action="store_true", help="talk, line by line; an empty line or end of input ends it")
    parser.add_argument("--raw", action="store_true", help="no chat template: the model continues the text")
    parser.add_argument("--max-tokens", type=int, default=64, help="new tokens at most (default 64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--min-p", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--stop", action="append", default=[], help="a text that ends the answer; may be given again")
    parser.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens whatever the model says")
    parser.add_argument("--chunk", type=int, default=512, help="prompt tokens per prefill forward (default 512)")
    parser.add_argument("--compare", metavar="METHOD", help="run the same prompt with another method too, e.g. dense")
    parser.add_argument("--stats", choices=("text", "json"), default="text", help="json: one object as the last line")
    return parser


def run(args: argparse.Namespace) -> int:
    from sparsec.commands.report import print_report, stats_object
    from sparsec.session import Session

    params = parse_params(args.param)
    sampling = _sampling(args)
    document = None if args.prompt or args.prompt_file or args.chat else _document(args)
    session = Session.open(args, args.method, params)
    if args.chat:
        return _chat(session, sampling)
    if document is not None and "budget" in session.param_names and "budget" not in params:
        session.request_params["budget"] = "25%"
    ids = session.encode(document.prompt if document else _prompt(args), raw=args.raw)
    if document is not None:
        _introduce(document, len(ids))
    result = session.generate(ids, sampling, echo=True, lead="" if document is None else "answer:   ")
    other = None
    if args.compare:
        other = Session.open(args, args.compare, {}, model=session.model).generate(ids, sampling, echo=False)
    if args.stats == "json":
        print(stats_object(result, other))
    else:
        print_report(result, other)
    return 0


def _sampling(args: argparse.Namespace):
    from sparsec_runtime.sampler import SamplingParams

    try:
        return SamplingParams(
            temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p, seed=args.seed,
            max_tokens=args.max_tokens, stop=tuple(args.stop), ignore_eos=args.ignore_eos,
        )  # fmt: skip
    except ValueError as error:
        raise CommandError(str(error), exit_code=2) from error


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        return args.prompt
    if str(args.prompt_file) == "-":
        return sys.stdin.read()
    try:
        return args.prompt_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {args.prompt_file}: {error}", exit_code=2) from error


def _document(args: argparse.Namespace):
    from sparsec.data.document import built_in

    return built_in()


def _introduce(document, tokens: int) -> None:
    print(f"document: {tokens} tokens with the question; hidden at {document.place:.0%}: {document.fact!r}")
    print(f"question: {document.question}", flush=True)


def _chat(session, sampling) -> int:
    """Every turn sends the whole conversation again."""
    messages: list[dict[str, str]] = []
    interactive = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if interactive else "")
        except EOFError:
            return 0
        if not line.strip():
            return 0
        messages.append({"role": "user", "content": line})
        result = session.generate(session.encode_chat(messages), sampling, echo=True)
        messages.append({"role": "assistant", "content": result.text})
