"""Measures the rows of rows.toml that a run lacks: python benchmarks/run.py RUN OUT [--only SUBSTR] [--minutes N] [--what prefill]

OUT is a file of JSON lines; give the same RUN and OUT again to go on. The model's weights are made once a process; a process that dies costs
its row, which says so, and the next one goes on behind it. Stops before the minutes are over: no row begins that may not end in time.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

from sparsec.bench.plan import Plan, PlannedRow, read_plan  # noqa: E402
from sparsec.bench.rows import append_row, find_row, is_measured, read_rows  # noqa: E402
from sparsec.bench.workload import Workload  # noqa: E402

SECONDS = 45.0  # of a row that no measured one says anything of
SHARE = 1.5  # a row may take so much longer than is expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", metavar="SUBSTR", help="rows whose label or name holds this, in any case")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--what", choices=("decode", "prefill"), default="decode", help="prefill: one prompt of each row's method and context at a time")
    parser.add_argument("--fill", choices=("synthetic", "prompt"), default="synthetic")
    parser.add_argument("--plan", type=Path, default=Path(__file__).with_name("rows.toml"))
    parser.add_argument("--worker", metavar="DEADLINE,SKIP,...", help=argparse.SUPPRESS)
    args = parser.parse_args()
    plan = read_plan(args.plan)
    if args.worker is not None:
        deadline, *skipped = args.worker.split(",")
        return work(args, plan, float(deadline), set(map(int, skipped)))
    return lead(args, plan)


def wanted(args: argparse.Namespace, plan: Plan) -> list[int]:
    """Numbers of the planned rows that the run lacks; those that failed before come last."""
    rows = read_rows(args.out)
    named: dict[int, dict[str, object]] = {}
    for number, row in enumerate(plan.rows):
        fields = name(args, plan, row)
        if args.only.lower() in f"{row.label} {row.work}".lower() and fields not in named.values():  # prompts of two batches are the same
            named[number] = fields
    missing = [number for number, fields in named.items() if not is_measured(rows, fields)]
    return sorted(missing, key=lambda number: find_row(rows, named[number]) is not None)


def name(args: argparse.Namespace, plan: Plan, row: PlannedRow) -> dict[str, object]:
    named = workload(args, row).named(args.what, plan.config, args.run)
    return named if args.what == "decode" else {**named, "lengths": 0}


def workload(args: argparse.Namespace, row: PlannedRow) -> Workload:
    return replace(row.work, fill=args.fill) if args.what == "decode" else replace(row.work, batch=1, fill="prompt")


def lead(args: argparse.Namespace, plan: Plan) -> int:
    """Starts workers until every row was tried or the time is over."""
    deadline = time.time() + 60 * args.minutes
    args.out.parent.mkdir(parents=True, exist_ok=True)
    missing = wanted(args, plan)
    for number, row in enumerate(plan.rows):
        print(f"{'to measure' if number in missing else 'not again'}: {row.work}", flush=True)
    now = in_progress(args.out)
    tried: set[int] = set()
    while deadline - time.time() > SECONDS:
        before = len(read_rows(args.out))
        outcome = worker([sys.executable, *sys.argv, "--worker", ",".join(map(str, (deadline, *tried)))], deadline)
        if not outcome:
            break
        if not now.exists():
            print(f"no row had begun: {outcome}", flush=True)
            return 3
        died = int(now.read_text())
        now.unlink()
        append_row(args.out, {**name(args, plan, plan.rows[died]), "error": outcome})
        new = read_rows(args.out)[before:]
        tried |= {number for number, row in enumerate(plan.rows) if find_row(new, name(args, plan, row)) is not None}
    left = [str(plan.rows[number].work) for number in wanted(args, plan)]
    print(f"{len(left)} rows are left" + "".join(f"\n  {text}" for text in left), flush=True)
    return 0


def in_progress(out: Path) -> Path:
    """The file that holds the number of the row that is being measured."""
    return out.with_name(f"{out.name}.now")


def worker(command: list[str], deadline: float) -> str:
    """Runs a worker to its end; what went wrong, if anything."""
    try:
        code = subprocess.run(command, check=False, timeout=max(1.0, deadline - time.time())).returncode
    except subprocess.TimeoutExpired:
        return "it had not ended when the time was over"
    return "" if code == 0 else f"the process that measured it ended with code {code}"


def expected(row: Workload, taken: list[tuple[int, float]]) -> float:
    """Seconds that a row may take: what those of as many tokens or fewer took at most, and more where it has more tokens than they."""
    tokens = row.context * row.batch
    fewer = [(of, seconds) for of, seconds in taken if of <= tokens]
    return SHARE * max(seconds for _, seconds in fewer) * tokens / max(of for of, _ in fewer) if fewer else SECONDS


def work(args: argparse.Namespace, plan: Plan, deadline: float, skipped: set[int]) -> int:
    """Measures rows in this process while there is time."""
    import torch
    from sparsec_runtime.models.loading import load_model

    from sparsec.bench.decode import measure_decode
    from sparsec.bench.prefill import measure_prefill
    from sparsec.bench.record import Recorder, text_of

    recorder = Recorder(args.out, args.run)
    model = load_model(plan.config, device="cuda", load_format="dummy")
    taken: list[tuple[int, float]] = []  # tokens and seconds of the rows of this process
    for number in wanted(args, plan):
        if number in skipped:
            continue
        row, measure = workload(args, plan.rows[number]), measure_decode if args.what == "decode" else measure_prefill
        if deadline - time.time() < expected(row, taken):
            print(f"no time for {row}", flush=True)
            continue
        in_progress(args.out).write_text(str(number))
        found = recorder.measure(name(args, plan, plan.rows[number]), lambda row=row, measure=measure: measure(row, model))
        in_progress(args.out).unlink()
        gc.collect()
        torch.cuda.empty_cache()
        taken.append((row.context * row.batch, float(found["seconds"])))
        print(f"{row}: {found['error']}" if "error" in found else f"{text_of(found)} ({found['seconds']} s)", flush=True)
        for kernel, count, microseconds in found.get("profile", ())[:5]:
            print(f"    {microseconds:9.1f} us {count:4d} {microseconds / count:8.2f} us each  {kernel}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
