#!/usr/bin/env python
"""Cost of each selection of rollouts, and its groups with a gradient.

    retcon sft quickstart/cold_start --out COLD
    python benchmarks/studies/selection.py COLD [--steps 20] [--tasks 600] [--json FILE]

Trains the quickstart's baseline from the cold start, once for each selection, for the same number of steps; per step:
rollouts made and trained on, groups trained on whose rewards differ, tokens sampled, CPU seconds (rollouts with their
tools, and update); then the share of rollouts that are right in the last five steps, which is about the tasks that the
selection drew and no evaluation. The pass rates are measured by the cold start, counted separately.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from retcon.config.load import load_recipe
from retcon.evaluate.difficulty import run_difficulty
from retcon.models.locating import locate
from retcon.runs.folder import cpu_seconds
from retcon.train.rl import run_rl

sys.path.append(str(Path(__file__).parents[1]))  # where `parts` is
from parts.results import TRAINED, add_json, save

ARMS: dict[str, tuple[str, ...]] = {
    "none": (),
    "roc, rank": ("select.kind=roc",),
    "roc, weighted": ("select.kind=roc", "select.draw=weighted"),
    "dynamic": ("select.dynamic=true",),
    "roc + dynamic": ("select.kind=roc", "select.dynamic=true"),
    "pass rates": ("select.pass_rates={rates}",),
}


def measured_by(lines: Sequence[Mapping[str, float]], prompts: int) -> dict[str, float]:
    """Means over the steps of an arm."""

    def mean(key: str) -> float:
        return fmean(line[key] for line in lines)

    return {
        "made": mean("rollouts"),
        "trained": mean("kept"),
        "told": prompts + mean("extra_groups") - mean("groups_flat") - mean("groups_skipped"),
        "tokens": mean("sampled_tokens"),
        "CPU s": lines[-1]["cpu_s"] / len(lines),
        "right": fmean(line["pass_rate"] for line in lines[-5:]),
    }


def row(name: str, of: Mapping[str, float]) -> str:
    return (
        f"{name:<16}{of['made']:>8.0f}{of['trained']:>9.0f}{of['told']:>8.1f}{of['tokens']:>9.0f}"
        f"{of['CPU s']:>8.2f}{of['right']:>8.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cold", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=600)
    add_json(parser)
    options = parser.parse_args()
    cold = locate(options.cold)
    common = ("run.seed=1", f"rl.steps={options.steps}", "rl.checkpoint_every=1000")
    print(f"{datetime.date.today()}, {platform.machine()}, Python {platform.python_version()}, {options.steps} steps")
    with tempfile.TemporaryDirectory() as folder:
        rates = Path(folder) / "rates.jsonl"
        recipe = load_recipe("quickstart/baseline", common)
        cpu, wall = cpu_seconds(), time.perf_counter()
        measured = run_difficulty(recipe, cold, rates, tasks=options.tasks, rollouts=8)
        within = sum(0 < one.passed < one.rollouts for one in measured)
        never = sum(not one.passed for one in measured)
        print(
            f"{len(measured)} tasks measured with 8 rollouts: {never} never right, "
            f"{within} between, {cpu_seconds() - cpu:.0f} CPU s, {time.perf_counter() - wall:.0f} s"
        )
        print(f"{'selection':<16}{'made':>8}{'trained':>9}{'told':>8}{'tokens':>9}{'CPU s':>8}{'right':>8}")
        found: dict[str, Any] = {
            "tasks": len(measured),
            "never right": never,
            "between": within,
            "steps": options.steps,
        }
        for name, changes in ARMS.items():
            overrides = [*common, *(change.format(rates=rates) for change in changes)]
            lines: list[Mapping[str, float]] = []
            arm = load_recipe("quickstart/baseline", overrides)
            run_rl(arm, cold, Path(folder) / name, on_step=lines.append)
            found[name] = measured_by(lines, arm.rl.prompts)
            print(row(name, found[name]), flush=True)
    if options.json is not None:
        command = f"benchmarks/studies/selection.py COLD --steps {options.steps} --tasks {options.tasks}"
        save(options.json, found, command=command, measures=TRAINED)


if __name__ == "__main__":
    main()
