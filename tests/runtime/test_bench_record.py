"""How rows are measured and told: what cannot be measured becomes a row, and a run goes on behind it."""

from __future__ import annotations

import pytest
import torch
from sparsec.bench import machine
from sparsec.bench.gates import Gate
from sparsec.bench.record import Recorder
from sparsec.bench.rows import read_rows
from sparsec.bench.workload import Workload
from sparsec.cli import main
from sparsec_runtime.memory import OutOfPages
from triton.runtime.errors import OutOfResources

NAMED = Workload("dense").named("decode", "tiny", "a")


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    monkeypatch.setattr(machine, "facts", lambda run, command: {"run": run, "gpu": "none"})


def refused(error: BaseException):
    def measure():
        raise error

    return measure


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OutOfPages("rows", 9, 2), "9 pages needed, 2 free"), (AssertionError("no kernel is called attend_"), "no kernel is called attend_"),
        (AssertionError(), "test_bench_record.py"), (torch.OutOfMemoryError("no memory"), "lower the batch or the context"),
        (OutOfResources(300000, 232448, "shared memory"), "does not fit this device"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_becomes_a_row_that_is_tried_again(tmp_path, error, words):
    recorder = Recorder(tmp_path / "rows.jsonl", "a")
    row = recorder.measure(NAMED, refused(error))
    assert words in row["error"] and read_rows(recorder.file) == [row]
    assert recorder.find(NAMED) is None and recorder.last(NAMED) == row


def test_a_mistake_in_the_program_ends_it(tmp_path):
    with pytest.raises(ZeroDivisionError):
        Recorder(tmp_path / "rows.jsonl", "a").measure(NAMED, refused(ZeroDivisionError()))


def test_gates_go_on_behind_a_bad_one_and_try_it_again_last(monkeypatch, capsys, tmp_path):
    from sparsec.commands import bench

    measured = []

    class Bench:
        def measure(self, gate: Gate) -> dict[str, object]:
            measured.append(gate.name)
            assert len(measured) > 1, "no kernel of the step is called rank_"
            return gate.judged(20.0)

    monkeypatch.setattr(bench, "_gate_bench", lambda args: Bench())
    command = ["bench", "kernels", "--only", "exact ranking", "--run", "a", "--out", str(tmp_path / "rows.jsonl")]
    assert main(command) == 0
    assert len(measured) == 3 and "no kernel of the step is called rank_" in capsys.readouterr().out
    assert main([*command, "--minutes", "0"]) == 0
    assert len(measured) == 3 and "no kernel of the step is called rank_" in capsys.readouterr().out
    assert main(command) == 0
    assert measured[3:] == measured[:1] and "no kernel" not in capsys.readouterr().out
