#!/usr/bin/env python
"""Compare the grader `livecodebench` with LiveCodeBench's own runner, program by program.

    git clone https://github.com/LiveCodeBench/LiveCodeBench /tmp/runner
    git -C /tmp/runner checkout 28fef95ea8c9f7a547c8329f2cd3d32b92c1fa24
    python benchmarks/studies/livecodebench.py --runner /tmp/runner [--programs FILE] [--record FILE]

The programs are `benchmarks/workloads/livecodebench.jsonl`: ordinary ones in varied style, each with its cases. The
runner needs numpy and tqdm; both run with this Python. Prints a table, and exits with 1 where the two differ. --record
writes the programs with the verdicts, the runner's as `lcb`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is
from parts.measure import machine
from parts.results import ROOT

from retcon.tasks.graders.livecodebench import COMMIT
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.grading.registry import Outcome, Reply
from retcon.tasks.types import Task

PROGRAMS = ROOT / "benchmarks/workloads/livecodebench.jsonl"
SECONDS = 6


def reply_of(row: dict[str, Any]) -> str:
    return str(row.get("reply") or f"```python\n{row['program']}\n```")


def by_runner(folder: Path, rows: list[dict[str, Any]]) -> list[bool]:
    """Return the published runner's verdicts in order. Its programs may write to the folder."""
    sys.path.insert(0, str(folder.resolve()))
    os.chdir(tempfile.mkdtemp())
    from lcb_runner.evaluation import extract_instance_results
    from lcb_runner.evaluation.compute_code_generation_metrics import evaluate_generations_by_problem
    from lcb_runner.lm_styles import LMStyle
    from lcb_runner.utils.extraction_utils import extract_code

    found: list[bool] = []
    for row in rows:
        cases = {"inputs": [t["input"] for t in row["tests"]], "outputs": [t["output"] for t in row["tests"]]}
        sample = {"input_output": json.dumps({**cases, "fn_name": row["func_name"]})}
        program = extract_code(reply_of(row), LMStyle.OpenAIChat)
        results, _ = evaluate_generations_by_problem(([program], sample, False, SECONDS))
        found.append(bool(extract_instance_results({0: results})[0][0]))
    return found


async def by_ours(rows: list[dict[str, Any]]) -> list[Outcome]:
    async with Grading(GradeSettings("livecodebench", options={"livecodebench": {"seconds": SECONDS}})) as grading:

        async def one(row: dict[str, Any]) -> Outcome:
            metadata = {"func_name": row["func_name"]} if row["func_name"] else {}
            task = Task(row["name"], "", "", meta={"public_test_cases": row["tests"], "metadata": metadata})
            return await grading.outcome(task, Reply(reply_of(row)))

        return await asyncio.gather(*map(one, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", type=Path, required=True, help="checkout of LiveCodeBench/LiveCodeBench")
    parser.add_argument("--programs", type=Path, default=PROGRAMS)
    parser.add_argument(
        "--record", type=lambda path: Path(path).resolve(), help="write the programs with their verdicts"
    )
    args = parser.parse_args()
    head = ["git", "-C", str(args.runner), "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    rows = [json.loads(line) for line in args.programs.read_text().splitlines()]
    published, ours = by_runner(args.runner, rows), asyncio.run(by_ours(rows))
    differ, mark = [], {True: "right", False: "wrong"}
    print("| program | its runner | `lcb` | `strict` |\n|---|---|---|---|")
    for row, theirs, grade in zip(rows, published, ours, strict=True):
        grades = getattr(grade, "grades", None) or {}
        lcb, strict = grades.get("lcb"), grades.get("strict")
        print(f"| {row['name']} | {mark[theirs]} | {mark.get(lcb, grade)} | {mark.get(strict, grade)} |")
        if lcb is not theirs:
            differ.append(row["name"])
        row |= {"lcb": theirs, "strict": strict}
    apart = sum(row["lcb"] is not row["strict"] for row in rows)
    print(
        f"\n{len(rows) - len(differ)} of {len(rows)} as the runner at {commit[:12]} says; `strict` differs in {apart}; "
        f"Python {sys.version.split()[0]}, {machine()}"
    )
    if commit != COMMIT:
        print(f"the grader follows {COMMIT[:12]}")
    if args.record:
        args.record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if differ:
        sys.exit(f"not as the runner says: {', '.join(differ)}")


if __name__ == "__main__":
    main()
