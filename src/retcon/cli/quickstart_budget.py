"""Time of a quickstart by measurement, and steps for a given time.

    python -m retcon.cli.quickstart_budget RECIPE [KEY=VALUE]...

prints a `Speed` as JSON; 20 to 60 seconds for a model of 135 million parameters on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from retcon.cli.runner import Experiment, Target
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, RetconError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from retcon.models.devices import Computing

LEAST = 0.05
"""Smallest useful share of the recipe's steps."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of a prompt, and of what a rollout samples."""

    prompt: float
    sampled: float


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a job. steps: of training, 0 for an evaluation. learnt, sampled: tokens. seconds: wall time."""

    name: str
    steps: int
    learnt: float
    sampled: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Work of a plan: the cold start, then chains of which `at_once` run side by side."""

    cold: Work
    chains: tuple[tuple[Work, ...], ...]
    at_once: int

    @property
    def works(self) -> list[Work]:
        return [self.cold, *(work for chain in self.chains for work in chain)]

    def seconds(self, factor: float = 1.0) -> float:
        """Return the wall seconds with `factor` times the steps. Each chain takes the first free place."""
        places = [0.0] * min(self.at_once, len(self.chains))
        for chain in self.chains:
            places[places.index(min(places))] += sum(_times(work, factor) for work in chain)
        return _times(self.cold, factor) + max(places)


def _times(work: Work, factor: float) -> float:
    """Seconds with `factor` times the steps; evaluations have none."""
    return work.seconds * factor if work.steps else work.seconds


def budget_of(plan: Experiment, speed: Speed, lengths: Lengths, at_once: int) -> Budget:
    """Compute the whole plan's work; its first targets are cold start and evaluation."""
    cold, evaluation = (_work_of(target, speed, lengths) for target in plan.targets[:2])
    chains = [tuple(_work_of(target, speed, lengths) for target in targets) for targets in plan.trained.values()]
    return Budget(cold, (*chains, (evaluation,)), at_once)


def _work_of(target: Target, speed: Speed, lengths: Lengths) -> Work:
    """Reckon a job by its tokens.

    A group's prompt is computed once; groups that teach nothing count as well.
    """
    from retcon.evaluate.runner import settings_of

    name, recipe = target.job.name, target.recipe
    if target.trains == "sft":
        learnt = recipe.sft.steps * recipe.sft.batch * (lengths.prompt + lengths.sampled)
        return Work(name, recipe.sft.steps, learnt, 0.0, learnt / speed.learnt_threads)
    if target.trains == "rl":
        groups = recipe.rl.steps * recipe.rl.prompts
        sampled = groups * recipe.select.made(recipe.rl.group) * lengths.sampled
        learnt = groups * (lengths.prompt + recipe.rl.group * lengths.sampled)
        return Work(name, recipe.rl.steps, learnt, sampled, learnt / speed.learnt + sampled / speed.sampled)
    section = recipe.evaluate
    sampled = section.problems * section.samples * len(settings_of(recipe)) * lengths.sampled
    return Work(name, 0, 0.0, sampled, sampled / speed.sampled)


def fit_steps(plan: Experiment, budget: Budget, hours: float, demonstrations: int) -> list[str]:
    """Overrides with which the plan takes about so many hours.

    Cold start and reinforcement learning share what evaluations leave as their recipes do. demonstrations: most that
    the data give. Raises RecipeError for a time that is too short.
    """
    if budget.seconds(LEAST) > hours * 3600:
        raise RecipeError(
            f"--hours {hours:g} is too short here: evaluations take {budget.seconds(0) / 3600:.2f} hours of it; give "
            f"{budget.seconds(LEAST) / 3600:.2f} at least, or evaluate on less (evaluate.problems, evaluate.samples)"
        )
    factor = _fitting(budget, hours * 3600)
    cold, arm = plan.targets[0].recipe, next(iter(plan.trained.values()))[0].recipe
    steps = max(1, int(cold.sft.steps * factor))
    return [
        f"sft.steps={steps}",
        f"sft.demonstrations={min(steps * cold.sft.batch, demonstrations)}",
        f"rl.steps={max(1, int(arm.rl.steps * factor))}",
    ]


def _fitting(budget: Budget, seconds: float) -> float:
    """Bisect the factor on steps, as the longest chain may change with it."""
    low, high = LEAST, 1.0
    while budget.seconds(high) < seconds:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if budget.seconds(middle) < seconds else (low, middle)
    return low


def budget_table(budget: Budget, lengths: Lengths) -> Table:
    """Show the plan, one job a row."""
    table = Table(title="The plan", title_justify="left", title_style="bold", box=box.HORIZONTALS, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("steps", "tokens learnt from", "tokens sampled", "minutes"):
        table.add_column(name, justify="right")
    for work in budget.works:
        counts = [f"{count:,.0f}" if count else "–" for count in (work.steps, work.learnt, work.sampled)]
        table.add_row(work.name, *counts, f"{work.seconds / 60:.1f}")
    table.add_section()
    table.add_row(f"in all, {budget.at_once} at once", "", "", "", f"{budget.seconds() / 60:.0f}")
    table.caption = (
        f"Measured on this machine just now; prompts of {lengths.prompt:.0f} tokens, {lengths.sampled:.0f} sampled a "
        "rollout. Other work on the machine, and longer rollouts, make it longer."
    )
    table.caption_justify = "left"
    return table


TEXTS, LENGTH, LEARNT = 8, 160, 100
"""Texts enough for what a micro-batch costs whatever its size, the cast of all weights above all, to weigh as little
as in training."""
ROWS, STEPS = 32, 8


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second where the recipe computes: trained with one thread and with the recipe's, and sampled by 32
    rollouts with one thread."""

    learnt: float
    learnt_threads: float
    sampled: float


class MeasuringFailed(RetconError):
    """Failure of the measurement, with the end of its output."""


def measure_speed(recipe: str, overrides: Sequence[str]) -> Speed:
    """Measure a recipe's model in a new process, which frees its memory. Raises MeasuringFailed."""
    words = [sys.executable, "-m", __name__, recipe, *overrides]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise MeasuringFailed(f"measuring the model ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return Speed(**json.loads(done.stdout.splitlines()[-1]))


def _measure(recipe: Recipe) -> Speed:
    import torch

    from retcon.models.devices import computing_of, set_threads
    from retcon.models.locating import model_folder
    from retcon.models.placing import place_training, start_model

    where = place_training(recipe, model_folder(recipe.model.path))
    computing, threads = computing_of(recipe.compute, where), recipe.run.threads
    model = start_model(recipe.model.path, recipe.run.seed, where.attention, where.device)
    set_threads(threads)
    _time_learning(model, TEXTS, computing)  # the first of a shape compiles kernels and touches memory
    together = TEXTS * LENGTH / _time_learning(model, TEXTS, computing)
    set_threads(1)
    alone = together if threads == 1 else TEXTS * LENGTH / _time_learning(model, TEXTS, computing)
    model.zero_grad()
    sampled = ROWS * STEPS / _time_sampling(model.to(getattr(torch, where.rollout_dtype)))
    return Speed(round(alone, 1), round(together, 1), round(sampled, 1))


def _time_learning(model: PreTrainedModel, texts: int, computing: Computing) -> float:
    """Seconds of a forward and a backward over some texts."""
    from retcon.core.types import Sample
    from retcon.train.kernels.forward import forwards

    mask, nothing = (0,) * (LENGTH - LEARNT) + (1,) * LEARNT, (0,) * LENGTH
    samples = [Sample(_random_ids(model, text), mask, (None,) * LENGTH, nothing) for text in range(texts)]
    began = time.perf_counter()
    with forwards(model, samples, computing) as parts:
        for part in parts:
            loss = -part.logprobs.sum()
            loss.backward()
            loss.item()  # waits for a GPU
    return time.perf_counter() - began


def _time_sampling(model: PreTrainedModel) -> float:
    """Seconds of STEPS tokens of ROWS rollouts."""
    import asyncio

    from retcon.engine.local.engine import LocalEngine
    from retcon.engine.types import SamplingParams

    async def rollouts(engine: LocalEngine, steps: int) -> None:
        async def one(row: int) -> None:
            prompt = _random_ids(model, row // 8)[: LENGTH - LEARNT]
            await engine.generate(str(row), prompt, SamplingParams(max_tokens=steps, seed=row))
            await engine.release(str(row))

        await asyncio.gather(*(one(row) for row in range(ROWS)))

    engine = LocalEngine(model, max_len=LENGTH, max_requests=ROWS)
    asyncio.run(rollouts(engine, 1))
    engine.invalidate()
    began = time.perf_counter()
    asyncio.run(rollouts(engine, STEPS))
    return time.perf_counter() - began


def _random_ids(model: PreTrainedModel, seed: int) -> tuple[int, ...]:
    import torch

    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, vocabulary, (LENGTH,), generator=generator).tolist())


if __name__ == "__main__":
    name, *overrides = sys.argv[1:]
    print(json.dumps(asdict(_measure(load_recipe(name, overrides)))))
