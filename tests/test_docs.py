"""What the docs show is true of the code: every ```sparse block checks, every `sparsec` command line parses.

A block that starts with `sparse 1` is a whole method and checks without a warning. Any other block is a fragment: it
stands in an empty method, where nothing needs to be used. A block with `# wrong: S201` gives exactly that code; without
a code, `# wrong` gives some error.
"""

import argparse
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from sparsec.cli import build_parser
from sparsec.diagnostics import Severity, Source, SpecError
from sparsec.dsl.check import check
from sparsec.dsl.parser import parse

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
WRONG = re.compile(r"# wrong(?:: (\w+))?")
INLINE = re.compile(r"`(sparsec [a-z][^`\n]*)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
SHELL_STOPS = {"|", "||", "&&", ";", ">", ">>", "<", "2>&1", "&"}
UNUSED = {"W801", "W802", "W803", "S602", "S603", "S608"}  # a fragment declares what it does not use


class Block(NamedTuple):
    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.stem}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [Block(page, text.count("\n", 0, m.start()) + 1, m.group(2)) for m in FENCE.finditer(text) if m.group(1) in languages]
    return found


def is_whole(text: str) -> bool:
    return text.startswith("sparse 1")


def codes_of(text: str) -> dict[str, Severity]:
    spec = text if is_whole(text) else f"sparse 1\nmethod fragment {{\n{text}}}\n"
    source = Source("block.sparse", spec)
    try:
        found = check(parse(source), source).warnings
    except SpecError as error:
        found = error.diagnostics
    codes = {one.code: one.severity for one in found}
    return codes if is_whole(text) else {code: severity for code, severity in codes.items() if code not in UNUSED}


SPECS = blocks("sparse")


@pytest.mark.parametrize("block", [one for one in SPECS if not WRONG.search(one.text)], ids=str)
def test_a_spec_in_the_docs_checks_clean(block):
    assert codes_of(block.text) == {}, f"{block.page.name}, line {block.line}"


@pytest.mark.parametrize("block", [one for one in SPECS if WRONG.search(one.text)], ids=str)
def test_a_spec_that_is_called_wrong_gives_the_code_it_names(block):
    wanted, codes = WRONG.search(block.text).group(1), codes_of(block.text)
    if wanted is None:
        assert Severity.ERROR in codes.values()
    else:
        assert set(codes) == {wanted}


def test_the_docs_show_specs_right_and_wrong():
    wrong = [one for one in SPECS if WRONG.search(one.text)]
    assert len(SPECS) - len(wrong) >= 20 and len(wrong) >= 8


# ---- command lines -----------------------------------------------------------------------------


def shell_lines() -> list[tuple[Block, str]]:
    """Lines after a `$ ` prompt, without what the shell does around the command."""
    found = []
    for block in blocks("console", "sh", "bash"):
        for line in block.text.splitlines():
            if line.startswith("$ sparsec"):
                found.append((block, line[2:]))
    return found


def words_of(line: str) -> list[str]:
    """The arguments of the command: up to a pipe, a redirection or a comment."""
    words = shlex.split(line, comments=True)[1:]
    end = next((n for n, word in enumerate(words) if word in SHELL_STOPS), len(words))
    return words[:end]


def subcommands() -> dict[str, argparse.ArgumentParser]:
    action = next(one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("block, line", shell_lines(), ids=lambda part: str(part))
def test_a_command_line_of_the_docs_is_accepted_by_the_parser(block, line, capsys):
    try:
        build_parser().parse_args(words_of(line))
    except SystemExit:
        pytest.fail(f"{block.page.name}, block at line {block.line}: {line}\n{capsys.readouterr().err}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_named_in_a_text_have_their_subcommand_and_flags(page):
    known = subcommands()
    for line in INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        name, *rest = words_of(line)
        assert name in known, f"{page.name}: {line}"
        flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert flags <= set(known[name]._option_string_actions), f"{page.name}: {line}"


def test_the_docs_show_commands():
    assert len(shell_lines()) >= 10


# ---- links -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_relative_links_and_paths_of_a_page_exist(page):
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [DOCS / "architecture.md"], ids=lambda page: page.stem)
def test_files_named_by_the_architecture_page_exist(page):
    root = DOCS.parent
    for path in re.findall(r"`((?:sparsec|runtime|sparsec_runtime|tests|methods|docs)/[\w./*-]+)`", page.read_text(encoding="utf-8")):
        place = f"runtime/{path}" if path.startswith("sparsec_runtime/") else path
        assert list(root.glob(place.rstrip("/"))), f"{page.name} names {path}"
