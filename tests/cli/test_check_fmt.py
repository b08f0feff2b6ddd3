"""`sparsec check` and `sparsec fmt` as a user calls them."""

import json
import subprocess
import sys

import pytest

from sparsec.cli import main
from sparsec.dsl.source import SourceError, load_source, shipped_methods

GOOD = "sparse 1\n\nmethod good {\n}\n"
WRONG = "sparse 1\n\nmethod wrong {\n  param a tokens = 1\n  zone 3\n}\n"
LOOSE = "sparse 1 method loose { zone   a  # first\n zone b { } }"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in (("good", GOOD), ("wrong", WRONG), ("loose", LOOSE)):
        (tmp_path / f"{name}.sparse").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_clean_file_says_so_on_stderr_and_nothing_on_stdout(folder, capsys):
    assert main(["check", "good.sparse"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "1 file, 0 errors, 0 warnings\n")


def test_errors_of_all_files_are_shown_and_counted(folder, capsys):
    assert main(["check", "good.sparse", "wrong.sparse", "wrong.sparse"]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("error[S001]") == 4
    assert " --> wrong.sparse:4:11\n" in captured.out
    assert captured.err == "3 files, 4 errors, 0 warnings\n"


def test_json_is_one_object_per_line_and_nothing_else(folder, capsys):
    assert main(["check", "wrong.sparse", "--format", "json"]) == 1
    captured = capsys.readouterr()
    read = [json.loads(line) for line in captured.out.splitlines()]
    assert [(one["code"], one["file"], one["line"], one["severity"]) for one in read] == [
        ("S001", "wrong.sparse", 4, "error"),
        ("S001", "wrong.sparse", 5, "error"),
    ]
    assert set(read[0]) == {"code", "severity", "message", "file", "line", "column", "end_line", "end_column", "help", "fixes"}
    assert captured.err == ""


def test_every_shipped_method_checks_clean_by_its_name(capsys):
    assert main(["check", *shipped_methods()]) == 0
    assert f"{len(shipped_methods())} files, 0 errors" in capsys.readouterr().err


def test_a_file_in_the_working_directory_wins_over_a_shipped_method(folder):
    name = next(iter(shipped_methods()))
    (folder / name).write_text(GOOD)
    assert load_source(name).text == GOOD


def test_an_unknown_method_is_wrong_usage_and_names_the_nearest(folder, capsys):
    name = next(iter(shipped_methods()))
    assert main(["check", name + "x"]) == 2
    captured = capsys.readouterr()
    assert f"did you mean `{name}`? shipped methods: {name}, " in captured.err


@pytest.mark.parametrize("path", ["missing.sparse", "no/such/file", ".", "a\0b"])
def test_a_path_that_cannot_be_read_is_wrong_usage(folder, path):
    with pytest.raises(SourceError) as caught:
        load_source(path)
    assert caught.value.exit_code == 2


def test_a_param_that_the_method_lacks_is_refused(folder, capsys):
    assert main(["check", "good.sparse", "--param", "nothing=3"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_check_reads_standard_input(folder):
    done = _sparsec("check", "-", stdin=WRONG)
    assert done.returncode == 1
    assert " --> <stdin>:4:11" in done.stdout


def test_check_imports_no_torch(folder):
    code = "import sys; from sparsec.commands import check; import argparse; p = argparse.ArgumentParser();"
    code += "check.add_parser(p.add_subparsers()); rc = check.run(p.parse_args(['check', 'good.sparse']));"
    code += "sys.exit(rc or 'torch' in sys.modules or 'networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=folder).returncode == 0


def test_fmt_rewrites_a_file_and_then_has_nothing_to_do(folder, capsys):
    assert main(["fmt", "loose.sparse"]) == 0
    assert (folder / "loose.sparse").read_text() == "sparse 1\n\nmethod loose {\n  zone a  # first\n  zone b {}\n}\n"
    assert main(["fmt", "loose.sparse", "good.sparse"]) == 0
    assert capsys.readouterr().err == "1 of 1 files changed\n0 of 2 files changed\n"
    assert sorted(path.name for path in folder.iterdir()) == ["good.sparse", "loose.sparse", "wrong.sparse"]


def test_fmt_check_names_what_is_not_formatted_and_changes_nothing(folder, capsys):
    assert main(["fmt", "--check", "loose.sparse", "good.sparse"]) == 1
    assert capsys.readouterr().err == "loose.sparse is not formatted\n"
    assert (folder / "loose.sparse").read_text() == LOOSE


def test_fmt_diff_shows_the_change_and_changes_nothing(folder, capsys):
    assert main(["fmt", "--diff", "loose.sparse"]) == 0
    assert "+  zone a  # first\n" in capsys.readouterr().out
    assert (folder / "loose.sparse").read_text() == LOOSE


def test_fmt_leaves_a_file_that_does_not_parse_as_it_is(folder, capsys):
    assert main(["fmt", "wrong.sparse"]) == 1
    assert "error[S001]" in capsys.readouterr().err
    assert (folder / "wrong.sparse").read_text() == WRONG


def test_fmt_turns_standard_input_into_standard_output(folder):
    done = _sparsec("fmt", "-", stdin=LOOSE)
    assert (done.returncode, done.stdout) == (0, "sparse 1\n\nmethod loose {\n  zone a  # first\n  zone b {}\n}\n")


def test_fmt_keeps_the_permissions_of_a_file(folder):
    path = folder / "loose.sparse"
    path.chmod(0o640)
    main(["fmt", "loose.sparse"])
    assert path.stat().st_mode & 0o777 == 0o640


def _sparsec(*arguments: str, stdin: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "import sys; from sparsec.cli import main; sys.exit(main())", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True)
