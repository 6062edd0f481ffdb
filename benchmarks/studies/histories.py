#!/usr/bin/env python
"""Measure how often steps are right, by the history before them.

    python benchmarks/studies/histories.py runs/grid-credit/frequent-loose [--arms dapo-baseline saar …] [--steps 5 8]

For number problems. A row is a step of the problem in an arm, over all seeds and the training steps of --steps: how
often the number that a working call prints there is right, where those before it were: in histories without a failed
call, in histories with one, and for the call that a repair put in place of a failed one; with the number of rollouts.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from retcon.core.seeds import derive
from retcon.core.types import REPLACED, Trajectory, Turn
from retcon.store.jsonl import read
from retcon.tasks.kinds.numbers import problems

HISTORIES = ("clean", "failed before", "fix", "after a fix")
LENGTH = 3
"""Steps of a problem in docs/protocol.md."""
PROBLEMS = 4000
"""Problems of a seed of which the values are looked up: more than a run draws."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--arms", nargs="+")
    parser.add_argument("--steps", type=int, nargs=2, default=(5, 8), metavar=("FIRST", "LAST"))
    options = parser.parse_args()
    arms = options.arms or sorted(
        folder.name for folder in options.comparison.iterdir() if any(folder.glob("seed-*/trajectories"))
    )
    print(f"| arm | step | {' | '.join(HISTORIES)} |\n|---|---|" + "---:|" * len(HISTORIES))
    for arm in arms:
        made, right = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        for run in sorted((options.comparison / arm).glob("seed-*")):
            truth = values_by_task(int(run.name.removeprefix("seed-")))
            for step in range(options.steps[0], options.steps[1] + 1):
                for file in run.glob(f"trajectories/step-{step:06d}.*"):
                    for one in read(file):
                        for key, is_right in steps_of(one, truth[one.task]):
                            made[key] += 1
                            right[key] += is_right
        for number in range(LENGTH):
            cells = [f"{right[number, h] / n:.2f} ({n})" if (n := made[number, h]) else "–" for h in HISTORIES]
            print(f"| {arm} | {number + 1} | {' | '.join(cells)} |", flush=True)


def values_by_task(seed: int) -> Mapping[str, list[int]]:
    """Return the values of each problem that a seed trains on."""
    drawn = islice(problems(derive("prompts", seed), "train", LENGTH), PROBLEMS)
    return {problem.task().id: [step.value for step in problem.steps] for problem in drawn}


def steps_of(one: Trajectory, truth: list[int]) -> Iterator[tuple[tuple[int, str], bool]]:
    """Yield each step's history and rightness, to the first wrong one."""
    number, failed, fixed = 0, False, False
    for turn in one.turns:
        if turn.failures:
            failed = True
            continue
        here = is_fix(turn)
        fixed = fixed or here
        for text in (o.text.strip() for o in turn.observations if o.status == "ok"):
            if number == len(truth) or not text.removeprefix("-").isdecimal():
                return
            history = "fix" if here else "after a fix" if fixed else "failed before" if failed else "clean"
            yield (number, history), int(text) == truth[number]
            if int(text) != truth[number]:
                return
            number += 1


def is_fix(turn: Turn) -> bool:
    return turn.repair is not None and turn.repair.decision in REPLACED


if __name__ == "__main__":
    main()
