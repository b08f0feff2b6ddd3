"""`sparsec methods`: the shipped methods, one line of facts and the params of each."""

from __future__ import annotations

import argparse
import json
from textwrap import wrap

WIDTH = 110


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "methods", help="list the shipped methods", description=__doc__,
        epilog="next: sparsec explain METHOD, sparsec run METHOD, sparsec explain --table",
    )  # fmt: skip
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one object per line")
    return parser


def run(args: argparse.Namespace) -> int:
    from sparsec.dsl.source import shipped_methods
    from sparsec.pipeline import Compilation

    for name, path in shipped_methods().items():
        entry = _entry(Compilation.load(name), str(path))
        print(json.dumps(entry, sort_keys=True, ensure_ascii=False) if args.format == "json" else _text(entry))
    return 0


def _entry(compilation, path: str) -> dict[str, object]:
    from sparsec.dsl import tree as t
    from sparsec.graph.overview import acts, scores

    facts = compilation.facts
    return {
        "name": facts.method,
        "doc": facts.doc or "",
        "cite": [item.text for item in compilation.checked.method.of(t.Cite)],
        "path": path,
        "params": [{"name": p.name, "unit": p.unit, "default": p.default, "set_at": p.set_at, "doc": p.doc or ""} for p in facts.params],
        "acts": acts(facts),
        "table": facts.table.value,
        "positions": facts.positions.value,
        "scores": scores(facts),
        "reuse": facts.reuse.value,
        "chunks": facts.chunks.value,
    }


def _text(entry: dict) -> str:
    cites = f" ({', '.join(entry['cite'])})" if entry["cite"] else ""
    lines = [f"{entry['name']}: {entry['doc']}{cites}"]
    lines.append(
        f"  {entry['acts']} · {entry['table']} table · {entry['positions']} positions · observes {entry['scores']} · "
        f"{entry['reuse']} reuse · chunk invariance {entry['chunks']}"
    )
    params = ", ".join(f"{param['name']}={param['default']}" for param in entry["params"]) or "none"
    lines += wrap(f"params: {params}", WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"
