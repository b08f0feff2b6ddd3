"""From what the user typed (a path, `-` or a method's name) to a `Source`.

Decodes UTF-8, drops a byte order mark and turns every line end into a newline, so that offsets, hashes and diagnostics
do not depend on the editor.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path

from sparsec.diagnostics import Diagnostic, Source, SpecError
from sparsec.dsl.tree import Span
from sparsec.failures import CommandError

SUFFIX = ".sparse"
_PACKAGE = Path(__file__).resolve().parent.parent


class SourceError(CommandError):
    """Nothing can be read under the name that was given. `help` says what can."""

    def __init__(self, message: str, help: str) -> None:
        self.message = message
        self.help = help
        super().__init__(f"{message}\n  = help: {help}", exit_code=2)


def load_source(name_or_path: str) -> Source:
    """Read a spec: `-` is standard input, `name` a shipped method, anything else a path.

    Raises SourceError where there is no such file, SpecError where the file is not text.
    """
    return decode_source(name_or_path, read_bytes(name_or_path))


def read_bytes(name_or_path: str) -> bytes:
    if name_or_path == "-":
        return sys.stdin.buffer.read()
    path = locate(name_or_path)
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SourceError(f"cannot read `{name_or_path}`: {reason}", "give the path of a readable .sparse file") from None


def locate(name_or_path: str) -> Path:
    """The file behind a path or a shipped method's name. A file of that very name in the working directory wins."""
    path = Path(name_or_path)
    if "\0" in name_or_path:
        raise SourceError("a path cannot hold a NUL byte", "give the path of a .sparse file")
    if path.is_file():
        return path
    if path.is_dir():
        raise SourceError(f"`{name_or_path}` is a directory", f"give its files: `{path / '*'}{SUFFIX}`")
    if not _is_name(name_or_path):
        raise SourceError(f"there is no file `{name_or_path}`", "a path ends in .sparse; a shipped method needs no path: " + _listed())
    shipped = shipped_methods()
    if name_or_path in shipped:
        return shipped[name_or_path]
    close = get_close_matches(name_or_path, shipped, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    raise SourceError(f"there is no method `{name_or_path[:100]}` and no file of that name", hint + "shipped methods: " + _listed())


def shipped_methods() -> dict[str, Path]:
    """name -> file, in alphabetical order; from the installed package or, in a checkout, from `methods/`."""
    folders = (_PACKAGE / "_methods", _PACKAGE.parent / "methods")
    folder = next((one for one in folders if one.is_dir()), None)
    assert folder is not None, f"no methods are shipped with this installation: neither {folders[0]} nor {folders[1]} exists"
    return {path.stem: path for path in sorted(folder.glob("*" + SUFFIX))}


def decode_source(path: str, content: bytes) -> Source:
    """Bytes to text. Raises SpecError S004, pointing at the first byte that is not UTF-8."""
    shown = "<stdin>" if path == "-" else path
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(*_not_utf8(shown, content, error)) from None
    return Source(shown, unified(text))


def unified(text: str) -> str:
    """No byte order mark; `\\n` for `\\r\\n` and `\\r`."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _is_name(text: str) -> bool:
    return not text.endswith(SUFFIX) and not any(char in text for char in "/\\")


def _listed() -> str:
    return ", ".join(shipped_methods())


def _not_utf8(path: str, content: bytes, error: UnicodeDecodeError) -> tuple[Source, tuple[Diagnostic, ...]]:
    before = unified(content[: error.start].decode("utf-8"))
    source = Source(path, unified(content.decode("utf-8", errors="replace")))
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    span = Span(len(before), len(before) + 1, line, column, line, column + 1)
    message = f"byte {error.start} of the file (0x{content[error.start]:02X}) is not UTF-8 text"
    return source, (Diagnostic("S004", message, span, "save the file with the encoding UTF-8"),)
