"""How long a quickstart takes, from what its recipes ask for and how quick the machine is; and its steps for a time."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.table import Table

from retcon.cli.quickstart.plan import Plan
from retcon.cli.quickstart.speed import Speed
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.evaluate.runner import settings_of

LEAST = 0.05
"""Share of the recipe's steps below which a training teaches nothing."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens: of a prompt, as the data have it; of what a rollout samples, as the quickstart says."""

    prompt: float
    sampled: float


@dataclass(frozen=True, slots=True)
class Work:
    """What a job computes. steps: of training, 0 for an evaluation. learnt, sampled: tokens. seconds: wall time."""

    name: str
    steps: int
    learnt: float
    sampled: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The works of a plan: the cold start, then chains that run `at_once` side by side."""

    cold: Work
    chains: tuple[tuple[Work, ...], ...]
    at_once: int

    @property
    def works(self) -> list[Work]:
        return [self.cold, *(work for chain in self.chains for work in chain)]

    def seconds(self, factor: float = 1.0) -> float:
        """Of everything, with so many times the steps: the cold start, then each chain as soon as there is a place."""
        places = [0.0] * min(self.at_once, len(self.chains))
        for chain in self.chains:
            places[places.index(min(places))] += sum(_times(work, factor) for work in chain)
        return _times(self.cold, factor) + max(places)


def _times(work: Work, factor: float) -> float:
    """Seconds with so many times the steps; evaluations have none."""
    return work.seconds * factor if work.steps else work.seconds


def budget_of(plan: Plan, speed: Speed, lengths: Lengths, at_once: int) -> Budget:
    """What the whole plan costs."""
    cold, evaluation = plan.cold
    return Budget(
        _supervised(cold.job.name, cold.recipe, speed, lengths),
        (
            *(
                (
                    _reinforced(training.job.name, training.recipe, speed, lengths),
                    _evaluated(measured.job.name, measured.recipe, speed, lengths),
                )
                for training, measured in plan.arms.values()
            ),
            (_evaluated(evaluation.job.name, evaluation.recipe, speed, lengths),),
        ),
        at_once,
    )


def scaled(plan: Plan, budget: Budget, hours: float) -> list[str]:
    """Overrides with which the plan takes about so many hours: what evaluations leave is shared between the cold start
    and reinforcement learning as the recipes share it, and there are as many demonstrations as the cold start reads.

    Raises RecipeError for a time in which next to nothing could be learnt.
    """
    if budget.seconds(LEAST) > hours * 3600:
        raise RecipeError(
            f"--hours {hours:g} is too short here: evaluations take {budget.seconds(0) / 3600:.2f} hours of it; give "
            f"{budget.seconds(LEAST) / 3600:.2f} at least, or evaluate on less (evaluate.problems, evaluate.samples)"
        )
    factor = _fitting(budget, hours * 3600)
    cold, arm = plan.cold[0].recipe, next(iter(plan.arms.values()))[0].recipe
    steps = max(1, int(cold.sft.steps * factor))
    return [
        f"sft.steps={steps}",
        f"sft.demonstrations={min(steps * cold.sft.batch, plan.about.demonstrations)}",
        f"rl.steps={max(1, int(arm.rl.steps * factor))}",
    ]


def _fitting(budget: Budget, seconds: float) -> float:
    """With how many times the steps everything takes so long: by halving, as which chain is the longest may change."""
    low, high = LEAST, 1.0
    while budget.seconds(high) < seconds:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if budget.seconds(middle) < seconds else (low, middle)
    return low


def budget_table(budget: Budget, lengths: Lengths) -> Table:
    """The plan, a job a row."""
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


def _supervised(name: str, recipe: Recipe, speed: Speed, lengths: Lengths) -> Work:
    learnt = recipe.sft.steps * recipe.sft.batch * (lengths.prompt + lengths.sampled)
    return Work(name, recipe.sft.steps, learnt, 0.0, learnt / speed.learnt_threads)


def _reinforced(name: str, recipe: Recipe, speed: Speed, lengths: Lengths) -> Work:
    """The prompts of a group are computed once; that some groups teach nothing is not counted on."""
    groups = recipe.rl.steps * recipe.rl.prompts
    sampled = groups * recipe.select.made(recipe.rl.group) * lengths.sampled
    learnt = groups * (lengths.prompt + recipe.rl.group * lengths.sampled)
    return Work(name, recipe.rl.steps, learnt, sampled, learnt / speed.learnt + sampled / speed.sampled)


def _evaluated(name: str, recipe: Recipe, speed: Speed, lengths: Lengths) -> Work:
    section = recipe.evaluate
    sampled = section.problems * section.samples * len(settings_of(recipe)) * lengths.sampled
    return Work(name, 0, 0.0, sampled, sampled / speed.sampled)
