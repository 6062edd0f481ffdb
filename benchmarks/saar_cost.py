#!/usr/bin/env python
"""What SAAR and RoC cost: a training step with each of them against the same step without.

    python benchmarks/saar_cost.py [--rounds 8] [--policy runs/saar_cost] [--first 0.25] [--retry 0.2]

The quickstart's world and recipes: 12 prompts × 8 rollouts, the model of 0.68 M parameters, calls in the sandbox, one
torch thread. Nothing is replayed or forced: the local engine samples every id, every call runs, every splice is scored,
the update is a training step's. What is made for the purpose is the policy: it learnt (as the quickstart's cold start
does) from demonstrations of a teacher that fails less often, --first of its first tries and --retry of the tries after
an error, so that about .6 calls of a rollout fail. It is made once, in --policy, which takes about two minutes.

Every arm starts every step from that policy's weights, with the same prompts and the same random streams; the arms take
turns, another one first in every round. The first step of each is not counted. Per step: wall and CPU seconds (those of
the sandbox's processes among them), and what was done for them, per rollout. Ratios: the median over the rounds, least
and greatest, and that of the sums. `saar` purifies every rollout (the quickstart's own recipe half of them).
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import datetime
import os
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from parts.results import TRAINED, add_json, save
from transformers import PreTrainedModel

from retcon.build import build_chat, build_tasks
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.models.devices import Placement, computing_of
from retcon.models.placing import model_folder, place_training, start_model
from retcon.runs.folder import Meter
from retcon.store import jsonl
from retcon.tasks.kinds.numbers import NumberTasks, Rates
from retcon.tasks.registry import training_prompts
from retcon.train.demos.making import demonstrations
from retcon.train.objective.shaping import rewards_of
from retcon.train.optim import adamw, torch_settings
from retcon.train.prompts import groups_to_train
from retcon.train.rl import draw_groups
from retcon.train.rollouts import EngineWeights, GroupStream, TrainingRollouts, open_rollouts
from retcon.train.sft import run_sft
from retcon.train.update import to_samples, update

ARMS = {
    "baseline": ("quickstart/baseline", ()),
    "saar": ("quickstart/saar", ("repair.probability=1.0",)),
    "roc": ("quickstart/roc", ()),
}
ONE_THREAD = ("run.threads=1", "compute.device=cpu")
COLD_START = ("sft.demonstrations=2000", "sft.steps=200", "sft.checkpoint_every=200")


@dataclass
class Arm:
    """One way to train. figures: name to a value for every step."""

    name: str
    recipe: Recipe
    where: Placement
    model: PreTrainedModel
    rollouts: TrainingRollouts
    figures: dict[str, list[float]] = field(default_factory=dict)

    async def step(self, number: int, weights: PreTrainedModel) -> dict[str, float]:
        """A whole step from `weights`, as `retcon.train.rl` takes it; what it cost and did."""
        self.model.load_state_dict(weights.state_dict())
        await self.rollouts.sync()
        config = self.recipe.rl
        optimizer = adamw(self.model, config.lr, weight_decay=config.weight_decay)
        prompts = islice(training_prompts(self.rollouts.tasks, self.recipe.run.seed), number * config.prompts, None)
        head = list(islice(prompts, config.prompts))

        meter, began = Meter(), time.process_time()
        drawn = await draw_groups(GroupStream(self.rollouts, iter(head)), step=number)
        rolled, here = meter.read(), time.process_time() - began
        samples = [
            sample
            for group in groups_to_train(self.recipe, drawn)
            for sample in to_samples(group, config.advantages(rewards_of(group)), config)
        ]
        computing = computing_of(self.recipe.compute, self.where)
        update(self.model, optimizer, samples, config, seed=self.recipe.run.seed, step=number + 1, computing=computing)
        await self.rollouts.sync()
        whole = meter.read()

        made = [t for group in drawn.made for t in group]
        return {
            "wall": whole.wall_s,
            "CPU": whole.cpu_s,
            "CPU, rollouts": here,
            "CPU, sandbox": rolled.cpu_s - here,
            "CPU, training": whole.cpu_s - rolled.cpu_s,
            "rollouts": len(made),
            "failed calls": per(made, sum(t.raw_failures for t in made)),
            "repaired": per(
                made,
                sum(
                    turn.repair is not None and turn.repair.decision in ("shallow", "deep")
                    for t in made
                    for turn in t.turns
                ),
            ),
            "calls": per(made, sum(t.raw_calls for t in made)),
            "tokens sampled": per(made, sum(t.sampled_tokens for t in made)),
            "… in lookaheads": per(made, sum(lookahead_tokens(t) for t in made)),
            "… scored": per(made, sum(len(s.ids or ()) for t in made for s in t.segments if s.kind == "spliced")),
            "tokens trained on": per(samples, sum(len(s.ids) for s in samples)),
        }


def per(things: list, total: float) -> float:
    return total / max(1, len(things))


def lookahead_tokens(trajectory: Trajectory) -> int:
    """Ids sampled in attempts that followed a failure with its history frozen."""
    count = 0
    for turn in trajectory.turns:
        if turn.repair is not None and turn.repair.decision in ("shallow", "deep", "unrepaired"):
            attempts = turn.abandoned if turn.repair.decision == "unrepaired" else turn.abandoned[1:]
            count += sum(len(s.ids or ()) for attempt in attempts for s in attempt.generated)
    return count


def policy(recipe: Recipe, folder: Path, rates: Rates) -> Path:
    """The policy's folder, trained as the recipe says unless it is there."""
    out = folder / f"first-{rates.first_failure}-retry-{rates.retry_failure}"
    file = out / "demonstrations.jsonl"
    if not file.exists():
        print(f"making the policy in {out} …", flush=True)
        out.mkdir(parents=True, exist_ok=True)
        chat = build_chat(recipe, model_folder(recipe.model.path))
        jsonl.write(file, asyncio.run(demonstrations(recipe, chat, tasks=NumberTasks(rates=rates))))
    return run_sft(recipe, file, out / "sft")


async def measure(start: Path, recipes: dict[str, Recipe], where: Placement, rounds: int) -> list[Arm]:
    async with AsyncExitStack() as stack:
        arms = []
        for name, recipe in recipes.items():
            model = start_model(start, recipe.run.seed)
            weights = EngineWeights(model, getattr(torch, where.rollout_dtype))
            rollouts = open_rollouts(recipe, weights, start, build_tasks(recipe))
            arms.append(Arm(name, recipe, where, model, await stack.enter_async_context(rollouts)))
        before = copy.deepcopy(arms[0].model)
        for number in range(rounds + 1):
            first = number % len(arms)
            for arm in (*arms[first:], *arms[:first]):
                for name, value in (await arm.step(number, before)).items():
                    if number:
                        arm.figures.setdefault(name, []).append(value)
        return arms


def figures(arms: list[Arm]) -> dict[str, Any]:
    """Medians of a step by arm; of what costs, the median of the ratios to the first arm, too."""
    first = arms[0]
    found: dict[str, Any] = {}
    for name, values in first.figures.items():
        row = found[name] = {arm.name: statistics.median(arm.figures[name]) for arm in arms}
        for arm in arms[1:] if name.startswith(("wall", "CPU")) else ():
            ratios = [mine / other for mine, other in zip(arm.figures[name], values, strict=True)]
            row[f"{arm.name} / {first.name}"] = [statistics.median(ratios), min(ratios), max(ratios)]
    return found


def table(arms: list[Arm], found: dict[str, Any]) -> str:
    first = arms[0]
    lines = [f"{'a step, median':22}" + "".join(f"{arm.name:>12}" for arm in arms)
             + "".join(f"{arm.name + ' / ' + first.name:>30}" for arm in arms[1:])]  # fmt: skip
    for name, row in found.items():
        line = f"{name:22}" + "".join(f"{row[arm.name]:12.3f}" for arm in arms)
        for arm in arms[1:] if name.startswith(("wall", "CPU")) else ():
            middle, least, most = row[f"{arm.name} / {first.name}"]
            pooled = sum(arm.figures[name]) / sum(first.figures[name])
            line += f"{middle:14.2f} ({least:.2f}…{most:.2f}) {pooled:.2f}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--policy", type=Path, default=Path("runs/saar_cost"), help="folder of the policy")
    parser.add_argument("--first", type=float, default=0.25, help="share of the teacher's first tries that fail")
    parser.add_argument("--retry", type=float, default=0.2, help="share of its tries after an error that fail")
    add_json(parser)
    options = parser.parse_args()
    recipes = {name: load_recipe(recipe, [*ONE_THREAD, *more]) for name, (recipe, more) in ARMS.items()}
    cold = load_recipe(None, [*ONE_THREAD, *COLD_START])
    with torch_settings(place_training(cold, model_folder(cold.model.path))):
        start = policy(cold, options.policy, Rates(options.first, options.retry))
    where = place_training(recipes["baseline"], start)
    with torch_settings(where):
        arms = asyncio.run(measure(start, recipes, where, options.rounds))
    print(f"{datetime.date.today()} · {os.cpu_count()} cores · {where.line} · {options.rounds} rounds")
    found = figures(arms)
    print(table(arms, found))
    if options.json:
        save(
            options.json,
            {**found, "rounds": options.rounds},
            command=f"benchmarks/saar_cost.py --rounds {options.rounds}",
            measures=TRAINED,
        )


if __name__ == "__main__":
    main()
