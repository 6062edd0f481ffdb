"""[track]: which trackers get a run's metrics, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from keys.acting import Lab, acts
from retcon.config.schema import Recipe
from retcon.runs.tracking import TrackedRun, Tracker

OWN = ['track.to=["keys.tracking:Kept"]']


class Kept(Tracker):
    """Keeps what it is told."""

    told: ClassVar[dict[str, Any]] = {}

    def __init__(self, run: TrackedRun) -> None:
        self.told.update(run=run, steps=[], closed=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.told["steps"].append((step, dict(metrics)))

    def close(self) -> None:
        self.told["closed"] = True


def kept(recipe: Recipe, lab: Lab) -> dict[str, Any]:
    Kept.told.clear()
    lab.reinforced(recipe)
    return dict(Kept.told)


@acts("track.to", (["keys.tracking:Kept"], [1, 2]), ([], []), given=["rl.steps=2"])
def steps_that_a_tracker_gets(recipe: Recipe, lab: Lab) -> list[int]:
    return [step for step, _ in kept(recipe, lab).get("steps", [])]


@acts("track.names", ("retcon", "loss"), ("verl", "actor/pg_loss"), ("trl", "retcon/pass_rate"), given=OWN)
def a_name_that_only_one_of_them_has(recipe: Recipe, lab: Lab) -> str:
    """TRL's name of the loss is ours; what it has none for is `retcon/…`, as with verl's."""
    _, metrics = kept(recipe, lab)["steps"][0]
    names = ("actor/pg_loss", "retcon/pass_rate", "loss")
    return next(name for name in names if name in metrics)


@acts("track.project", ("retcon", "retcon"), ("mine", "mine"), given=OWN)
def project_that_a_tracker_is_told(recipe: Recipe, lab: Lab) -> str:
    return kept(recipe, lab)["run"].project


@acts("track.name", ("", True), ("first", False), given=OWN)
def the_run_is_called_as_its_folder(recipe: Recipe, lab: Lab) -> bool:
    run = kept(recipe, lab)["run"]
    return run.name == run.folder.name
