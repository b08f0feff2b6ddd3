"""Writes the tables of README.md between their markers: python benchmarks/table.py OUT [--run RUN]

Rows are those of rows.toml, gates those of sparsec bench kernels, figures those of one run in OUT; the prose around them stays, and so does the table
of gates where the run measured none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "runtime")]

from sparsec.bench import gates  # noqa: E402
from sparsec.bench.plan import read_plan  # noqa: E402
from sparsec.bench.rows import read_rows  # noqa: E402
from sparsec.bench.table import last_run, markdown, replace_between  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--run", help="default: that of the last row")
    parser.add_argument("--plan", type=Path, default=HERE / "rows.toml")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md")
    args = parser.parse_args()
    rows = read_rows(args.out)
    run = args.run or last_run(rows)
    text = replace_between(args.readme.read_text(encoding="utf-8"), "rows", markdown(read_plan(args.plan), rows, run))
    judged = {row["gate"]: row for row in rows if row.get("what") == "gate" and row["run"] == run}
    if judged:
        text = replace_between(text, "gates", gates.markdown(gates.shipped_gates(), judged))
    args.readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
