#!/usr/bin/env python
"""What the lookahead is shown, and what comes of it: rollouts with `all` failed attempts, the `first`, or the `latest`.

    python benchmarks/lookahead.py [--seeds 3] [--steps 4] [--start CHECKPOINT] [--attempts 3] [--json FILE]

The quickstart's tasks, every rollout purified, 12 prompts × 8 rollouts a step, sampled and run, nothing trained. The
rollouts start from --start, such as a finished quickstart's runs/quickstart/cold_start/final, or else from the policy
of `saar_cost.py`, which fails less often (made in --policy unless it is there; two minutes). All three readings see
the same prompts with the same random streams, so their rollouts are identical up to the second attempt at a turn. Each
column is the mean over the seeds with Student's t interval (95 %; none for a single seed); the last two are the
differences from `all`, taken seed by seed, where the shared random streams make them less noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import statistics
from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import get_args

import torch
from figures import figure
from parts.results import ROLLED_OUT, add_json, save
from saar_cost import COLD_START, ONE_THREAD, lookahead_tokens, policy

from retcon.build import build_tasks
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.evaluate.statistics import Interval, exactly, over_seeds
from retcon.models.devices import Placement
from retcon.models.placing import model_folder, place_training, start_model
from retcon.purify.saar import Shown
from retcon.tasks.kinds.numbers import Rates
from retcon.tasks.registry import training_prompts
from retcon.train.optim import torch_settings
from retcon.train.rl import draw_groups
from retcon.train.rollouts import EngineWeights, GroupStream, open_rollouts


async def roll_out(recipe: Recipe, start: Path, where: Placement, steps: int) -> list[Trajectory]:
    weights = EngineWeights(start_model(start, recipe.run.seed), getattr(torch, where.rollout_dtype))
    made: list[Trajectory] = []
    async with open_rollouts(recipe, weights, start, build_tasks(recipe)) as rollouts:
        await rollouts.sync()
        prompts = training_prompts(rollouts.tasks, recipe.run.seed)
        for number in range(steps):
            drawn = await draw_groups(GroupStream(rollouts, islice(prompts, recipe.rl.prompts)), step=number)
            made += [trajectory for group in drawn.made for trajectory in group]
    return made


def figures(made: list[Trajectory]) -> dict[str, float]:
    repairs = [turn.repair for t in made for turn in t.turns if turn.repair is not None and turn.repair.attempts]
    decided = Counter(repair.decision for repair in repairs)
    again = [repair for repair in repairs if repair.attempts > 1]
    fixed = ("shallow", "deep")
    return {
        "failed turns": len(repairs),
        "… of them repaired": (decided["shallow"] + decided["deep"]) / len(repairs),
        "… shallow, of those": decided["shallow"] / max(1, decided["shallow"] + decided["deep"]),
        "… answered": decided["answered"] / len(repairs),
        "… unrepaired": decided["unrepaired"] / len(repairs),
        "attempts a failed turn": statistics.mean(repair.attempts for repair in repairs),
        "turns with a second attempt": len(again),
        "… of them repaired in the end": sum(repair.decision in fixed for repair in again) / max(1, len(again)),
        "tokens in lookaheads, a rollout": sum(map(lookahead_tokens, made)) / len(made),
        "right rollouts": sum((t.reward or 0) > 0 for t in made) / len(made),
    }


def compared(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Interval]]:
    """By row: every reading's mean over the seeds, and how far the others are from the first, seed by seed."""
    first, *others = results
    rows: dict[str, dict[str, Interval]] = {}
    for row in results[first][0]:
        values = {name: [run[row] for run in runs] for name, runs in results.items()}
        apart = {
            f"{name} − {first}": [b - a for a, b in zip(values[first], values[name], strict=True)] for name in others
        }
        rows[row] = {name: interval(of) for name, of in (values | apart).items()}
    return rows


def interval(values: list[float]) -> Interval:
    return over_seeds(values) if len(values) > 1 else exactly(values[0])


def table(rows: dict[str, dict[str, Interval]]) -> str:
    lines = [f"{'':32}" + "".join(f"{name:>24}" for name in next(iter(rows.values())))]
    for row, cells in rows.items():
        lines.append(f"{row:32}" + "".join(figure(asdict(one), 2).rjust(24) for one in cells.values()))
    return "\n".join(lines)


def cautious_policy(folder: Path) -> Path:
    cold = load_recipe(None, [*ONE_THREAD, *COLD_START])
    with torch_settings(place_training(cold, model_folder(cold.model.path))):
        return policy(cold, folder, Rates(0.25, 0.2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of 96 rollouts each")
    parser.add_argument("--start", type=Path, help="a checkpoint to roll out from (default: the policy in --policy)")
    parser.add_argument("--policy", type=Path, default=Path("runs/saar_cost"), help="folder of the policy")
    parser.add_argument("--attempts", type=int, default=3, help="K")
    add_json(parser)
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds: at least one")
    start = options.start or cautious_policy(options.policy)
    results: dict[str, list[dict[str, float]]] = {shown: [] for shown in get_args(Shown)}
    for seed in range(options.seeds):
        for shown, runs in results.items():
            keys = [f"repair.lookahead={shown}", "repair.probability=1.0", f"repair.attempts={options.attempts}"]
            recipe = load_recipe("quickstart/saar", [*ONE_THREAD, *keys, f"run.seed={seed}"])
            where = place_training(recipe, start)
            with torch_settings(where):
                runs.append(figures(asyncio.run(roll_out(recipe, start, where, options.steps))))
    rollouts = options.steps * recipe.rl.prompts * recipe.rl.group
    print(f"{datetime.date.today()} · {os.cpu_count()} cores · {options.seeds} seeds of {rollouts} rollouts")
    rows = compared(results)
    print(table(rows))
    if options.json is not None:
        found = {row: {name: asdict(one) for name, one in cells.items()} for row, cells in rows.items()}
        began = " --start runs/quickstart/cold_start/final" if options.start else ""
        asked = f"benchmarks/lookahead.py --seeds {options.seeds} --steps {options.steps}{began}"
        save(options.json, {"seeds": options.seeds, "rollouts": rollouts, **found}, command=asked, measures=ROLLED_OUT)


if __name__ == "__main__":
    main()
