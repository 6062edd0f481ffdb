#!/usr/bin/env python
"""This tree against another checkout: CPU time of a rollout, a step, a sandbox call and a purified file.

    python benchmarks/against.py CHECKOUT [--python CHECKOUT/.venv/bin/python] [--model base] [--pairs 5] [--only …]

Each case is a command that both checkouts run with a small and a large amount of work, in turns, on one thread. What
counts is the difference of the two, so that the start of a process does not, in CPU time of all processes. Printed are
the medians of both sides, and of the pairs' ratios with the least and the largest: above 1 this tree is slower.
--model: of the rollouts, such as the cold start of a `retcon quickstart`, which calls Python.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from parts.results import machine
from purify import messages

ROOT = Path(__file__).resolve().parents[1]
CALLS = """
import asyncio, sys
from retcon.sandbox.pool import SandboxPool

async def main():
    async with SandboxPool(workers=1) as pool:
        for n in range(int(sys.argv[1])):
            assert (await pool.run(f"print({n} + 1)")).status == "ok"

asyncio.run(main())
"""


@dataclass(frozen=True)
class Case:
    """words: of the command, by amount of work and folder. sizes: small and large. feeds: its input."""

    unit: str
    sizes: tuple[int, int]
    words: Callable[[int, Path], Sequence[object]]
    feeds: Callable[[int], str] = lambda _: ""


def evaluated(problems: int, folder: Path, model: str = "base") -> Sequence[object]:
    words = ("-m", "retcon", "eval", model, "mini/cleaner", f"evaluate.problems={problems}", "evaluate.samples=1")
    return *words, "run.threads=1", "--repair", "--out", folder / "out"


def purified(transcripts: int, folder: Path) -> Sequence[object]:
    draw = random.Random(0)
    rows = (messages(draw, n, n % 10 == 0) for n in range(transcripts))
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return "-m", "retcon", "purify", folder / "in.jsonl", "-o", folder / "out.jsonl", "--jobs", 1


CASES = {
    "rollout": Case("problem, two rollouts with SAAR", (5, 45), evaluated),
    "step": Case(
        "GRPO step of 16 × 8 rollouts", (1, 4), lambda *_: ["benchmarks/parts/our_step.py"], lambda n: "\n" * n
    ),
    "sandbox": Case("call in the sandbox", (50, 1050), lambda n, _: ["-c", CALLS, n]),
    "purify": Case("transcript of 3 to 8 calls", (50, 2050), purified),
}


def seconds(case: Case, size: int, checkout: Path, python: str) -> float:
    """CPU seconds of the command and of all that it started."""
    folder = Path(tempfile.mkdtemp())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
    try:
        words = [python, *map(str, case.words(size, folder))]
        with tempfile.TemporaryFile("w+") as given, (folder / "log").open("w") as log:
            given.write(case.feeds(size))
            given.seek(0)
            running = subprocess.Popen(words, cwd=checkout, env=environment, stdin=given, stdout=log, stderr=log)
            _, status, usage = os.wait4(running.pid, 0)
        if status:
            sys.exit(f"{' '.join(words)} failed in {checkout}:\n{(folder / 'log').read_text()[-2000:]}")
        return usage.ru_utime + usage.ru_stime
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", help="of the other checkout", default="")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--model", default="base")
    options = parser.parse_args()
    cases = {**CASES, "rollout": replace(CASES["rollout"], words=partial(evaluated, model=options.model))}
    other = options.checkout.resolve()
    sides = ((ROOT, sys.executable), (other, options.python or str(other / ".venv/bin/python")))
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}; ms of CPU for a", flush=True)
    for name in options.only:
        case, found = cases[name], []
        for pair in range(options.pairs):
            took = {}
            for side in sides if pair % 2 else sides[::-1]:
                small, large = (seconds(case, size, *side) for size in case.sizes)
                took[side] = 1000 * (large - small) / (case.sizes[1] - case.sizes[0])
            found.append([took[side] for side in sides])
        here, there = (statistics.median(side) for side in zip(*found, strict=True))
        ratios = sorted(a / b for a, b in found)
        print(f"{case.unit}: {here:.3g} here, {there:.3g} there, {statistics.median(ratios):.2f} times "
              f"({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
