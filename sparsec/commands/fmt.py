"""`sparsec fmt`: bring specs into the one layout. Changes no meaning and keeps comments."""

from __future__ import annotations

import argparse
import os
import sys
from difflib import unified_diff
from pathlib import Path

from sparsec.dsl.source import decode_source, locate, read_bytes
from sparsec.failures import CommandError

EPILOG = """examples:
  sparsec fmt my.sparse            rewrite the file
  sparsec fmt --check *.sparse     change nothing; exit code 1 where a file is not in the layout
  sparsec fmt --diff my.sparse     show what would change, change nothing
  sparsec fmt - < my.sparse        from standard input to standard output

Exit code: 0 done, 1 a file does not parse or, with --check, is not in the layout, 2 wrong usage."""


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "fmt", help="format specs", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("files", nargs="+", metavar="FILE", help="a .sparse file, or - for standard input to standard output")
    parser.add_argument("--check", action="store_true", help="change nothing, name the files that are not formatted")
    parser.add_argument("--diff", action="store_true", help="change nothing, show what would change")
    return parser


def run(args: argparse.Namespace) -> int:
    changed = [name for name in args.files if _one(name, write=not (args.check or args.diff), diff=args.diff)]
    if args.check:
        for name in changed:
            print(f"{name} is not formatted", file=sys.stderr)
        return 1 if changed else 0
    if not args.diff and args.files != ["-"]:
        print(f"{len(changed)} of {len(args.files)} files changed", file=sys.stderr)
    return 0


def _one(name: str, write: bool, diff: bool) -> bool:
    """Format one file; says whether it was in another form."""
    from sparsec.dsl.format import format_text

    content = read_bytes(name)
    source = decode_source(name, content)
    formatted = format_text(source.text, source.path)
    changed = formatted.encode() != content
    if diff and changed:
        before, after = source.text.splitlines(keepends=True), formatted.splitlines(keepends=True)
        sys.stdout.writelines(unified_diff(before, after, source.path, f"{source.path} (formatted)"))
    if name == "-" and write:
        sys.stdout.write(formatted)
    elif write and changed:
        _replace(locate(name), formatted)
    return changed


def _replace(path: Path, text: str) -> None:
    """All of the new text or all of the old: never a file that is half written."""
    target = path.resolve()
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(text, encoding="utf-8", newline="\n")
        fresh.chmod(target.stat().st_mode & 0o777)
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise CommandError(f"cannot write `{path}`: {error.strerror}") from None
