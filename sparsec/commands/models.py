"""`sparsec models`: the models that can be named without a path."""

from __future__ import annotations

import argparse
import json


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("models", help="list built-in models and shape presets", description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser


def run(args: argparse.Namespace) -> int:
    from sparsec_runtime.models.catalog import list_models

    entries = list_models()
    if args.format == "json":
        for entry in entries:
            print(json.dumps({"name": entry.name, "source": entry.source, "size": entry.size, "state": entry.state}))
        return 0
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        print(f"{entry.name:<{width}}  {entry.state:<12}  {entry.source}")
    return 0
