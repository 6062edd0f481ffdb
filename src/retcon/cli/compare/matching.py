"""Equal budgets: by how much each arm trains, so that all have had the same of what `--match` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from retcon.cli.compare.arms import Arm
from retcon.config.schema import RLSection
from retcon.config.stages import stages_of
from retcon.core.errors import RecipeError, RecordError
from retcon.runs.metrics import read_metrics

Match = Literal["rollouts", "tokens", "updates", "wall"]
MOST = 10
"""An arm that is to sample as many tokens, or cost as many seconds, as the first one ends at so many times the first
one's steps at the latest."""

ABOUT: dict[Match, str] = {
    "rollouts": "equal rollouts trained on: steps × prompts × group",
    "tokens": "equal tokens sampled in training, lookaheads and dropped rollouts among them, to the end of a step",
    "updates": "equal optimiser steps: steps × minibatches × epochs",
    "wall": "equal CPU seconds of training, those of tool calls among them, to the end of a step; this does not repeat "
    "bit for bit",
}

KEYS: dict[Match, tuple[str, str]] = {
    "tokens": ("rl.max_sampled_tokens", "sampled_tokens"),
    "wall": ("rl.max_cpu_seconds", "cpu_s"),
}
"""Of matches that are known only once the first arm has been trained: the key that ends a run, and the metric."""


def matched(arms: Sequence[Arm], match: Match) -> list[Arm]:
    """The arms with as many steps as match the first one's; of an arm with stages the last one gets more or fewer.
    Raises RecipeError where no whole number of steps does, where an arm's learning rate goes by a number of steps that
    is not known, or where its last stage would not begin in as many as it has at most."""
    first, *others = arms
    if match in KEYS:
        most = MOST * first.settings.rl.steps
        for arm in others:
            try:
                arm.changed(f"{KEYS[match][0]}=1")  # refuses a schedule that it does not go with
            except RecipeError as error:
                why = str(error).partition(": ")[2]  # without the override, which nobody wrote
                raise RecipeError(f"--match {match}: {arm.recipe}: {why}") from error
            if (begins := stages_of(arm.settings)[-1].before) >= most:
                raise RecipeError(
                    f"--match {match}: {arm.recipe} has {begins} steps before its last stage, and an arm has no more "
                    f"than {most}, {MOST} times those of {first.recipe}: change stages.1.steps, or the first one's "
                    "rl.steps"
                )
        return [first, *(_lasting(arm, most) for arm in others)]
    made = [first]
    wanted = sum(stage.steps * _of_a_step(stage.recipe.rl, match) for stage in stages_of(first.settings))
    for arm in others:
        *before, last = stages_of(arm.settings)
        left = wanted - sum(stage.steps * _of_a_step(stage.recipe.rl, match) for stage in before)
        own, odd = divmod(left, _of_a_step(last.recipe.rl, match))
        if odd or own < 1:
            rest = f" in its last stage, to which {left} are left" if before else ""
            raise RecipeError(
                f"--match {match}: {first.recipe} has {wanted} {match}, and {arm.recipe} has "
                f"{_of_a_step(last.recipe.rl, match)} a step{rest}, which does not divide that evenly: change "
                "rl.steps, or what a step has"
            )
        made.append(_lasting(arm, last.before + own))
    return made


def late_words(match: Match, first: Path) -> Callable[[], list[str]]:
    """What an arm is told besides, once the first arm's run, in the folder `first`, is over: its budget. match: one of
    KEYS."""

    def words() -> list[str]:
        key, metric = KEYS[match]
        return [f"{key}={spent(first, metric):.12g}"]

    return words


def spent(folder: Path, metric: str) -> float:
    """Of a run: the tokens that all steps sampled, or the CPU seconds up to the last one. Raises RecordError where its
    metrics do not tell."""
    file = folder / "metrics.jsonl"
    told = [value for line in read_metrics(file) if (value := line.get(metric)) is not None]
    if not any(told):  # as a budget, 0 would be none
        raise RecordError(f"{file} tells no {metric}: remove {folder}, and the same command trains that run again")
    return told[-1] if metric == "cpu_s" else sum(told)  # the first is told as it stands


def _lasting(arm: Arm, steps: int) -> Arm:
    """The arm with so many steps in all, its last stage with those that the others leave, also where it says its own
    number."""
    if steps == arm.settings.rl.steps:
        return arm
    stages = arm.settings.stages
    left = steps - stages_of(arm.settings)[-1].before
    own = [f"stages.{len(stages)}.steps={left}"] if stages and stages[-1].steps else []
    return arm.changed(f"rl.steps={steps}", *own)


def _of_a_step(section: RLSection, match: Match) -> int:
    return section.minibatches * section.epochs if match == "updates" else section.prompts * section.group
