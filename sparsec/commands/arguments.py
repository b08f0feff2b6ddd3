"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse

from sparsec_runtime.models.shape import DTYPE_BYTES

from sparsec.failures import CommandError

DEFAULT_MODEL = "smollm2-135m"


def add_method_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", metavar="METHOD|FILE", help="a shipped method (see `sparsec methods`) or a .sparse file")
    add_param_argument(parser)


def add_param_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE",
        help="a param of the method; tokens may be a share of the prompt, e.g. budget=25%%; may be given again",
    )  # fmt: skip


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default=DEFAULT_MODEL,
        help=f"built-in name, local Hugging Face directory, .gguf file, or a shape with --load-format dummy (default {DEFAULT_MODEL})",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=("auto", *DTYPE_BYTES), default="auto", help="of weights and KV (default auto: what the model's config states)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default auto: CUDA where there is a device)")
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto", help="dummy: random weights of the shape")


def parse_params(pairs: list[str]) -> dict[str, str]:
    """`name=value` texts to a mapping. A name given twice is an error, since one of the two would be lost."""
    params: dict[str, str] = {}
    for pair in pairs:
        name, found, value = pair.partition("=")
        name = name.strip()
        if not found or not name or not value.strip():
            raise CommandError(f"--param {pair!r} is not NAME=VALUE, e.g. --param budget=512", exit_code=2)
        if name in params:
            raise CommandError(f"--param {name} is given twice ({params[name]} and {value})", exit_code=2)
        params[name] = value.strip()
    return params
