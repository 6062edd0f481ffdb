"""Tests the tests: puts faults into the code, one at a time, and lists those that no test notices. `make mutants`.

    make mutants                                              # all of them: hours
    make mutants ARGS="--only 'retcon.select.*' --sample 100 --seed 1"

mutmut makes the faults and runs the tests that reach each, as [tool.mutmut] in pyproject.toml says, in a copy of the
repository under build/mutants. What is known of a fault is kept there: the same command goes on where it was, and other
code or tests begin anew. Ends with 1 where a fault goes unnoticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants"
ENDS = {0: "survived", 1: "noticed", 3: "noticed", 33: "reached by no test", 36: "out of time", None: "not tried"}
"""What mutmut's exit codes mean; any other is a crash, which is noticed too."""
UNNOTICED = ("survived", "reached by no test")


def copy_tree() -> None:
    """The files that git knows of, where they differ from those in the copy."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, COPY / name
        if source.is_file() and not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def mutmut(*names: str, children: int) -> None:
    words = [sys.executable, "-m", "mutmut", "run", "--max-children", str(children), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (COPY / "mutmut.log").open("ab") as log:
        subprocess.run(words, cwd=COPY, env=environment, check=False, stdout=log, stderr=log)


def known() -> dict[str, str]:
    """Every fault by name, and how it ended."""
    found: dict[str, str] = {}
    for file in sorted((COPY / "mutants" / "src").rglob("*.meta")):
        ends = json.loads(file.read_text(encoding="utf-8"))["exit_code_by_key"]
        found |= {name: ENDS.get(code, "noticed") for name, code in ends.items()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="faults whose name is like this, such as 'retcon.select.*'")
    parser.add_argument("--sample", type=int, help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--children", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    options = parser.parse_args()
    copy_tree()
    mutmut("no such fault", children=options.children)  # makes them all, and finds the tests that reach each
    every = sorted(known())
    if not every:
        print(f"mutmut made no faults; {COPY / 'mutmut.log'} says why", file=sys.stderr)
        return 2
    chosen = [name for name in every if fnmatch(name, options.only)]
    if options.sample is not None and options.sample < len(chosen):
        chosen = sorted(random.Random(options.seed).sample(chosen, options.sample))
    if left := [name for name in chosen if known()[name] == "not tried"]:
        mutmut(*left, children=options.children)
    ends = known()
    if any(ends[name] == "not tried" for name in chosen):
        print(
            f"faults were left untried: a test fails without a fault? {COPY / 'mutmut.log'} says why", file=sys.stderr
        )
        return 2
    for name in chosen:
        if ends[name] in UNNOTICED:
            shown = subprocess.run(
                [sys.executable, "-m", "mutmut", "show", name], cwd=COPY, check=False, capture_output=True, text=True
            ).stdout
            print(f"{name}: {ends[name]}", *(line for line in shown.splitlines() if line[:1] in "-+"), sep="\n")
    print(
        f"{len(chosen)} of {len(every)} faults:",
        ", ".join(f"{n} {end}" for end, n in Counter(ends[c] for c in chosen).items()),
    )
    return int(any(ends[name] in UNNOTICED for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
