"""[rl] and [task], as far as they are a run's: its steps, its prompts, its optimiser, its checkpoints."""

from __future__ import annotations

import warnings

from keys.acting import Lab, acts
from keys.supervised import change, figure, shrinkage
from retcon.config.schema import Recipe, TaskSection
from retcon.core.errors import DriftWarning
from retcon.store import jsonl
from retcon.train.rl import run_rl
from retcon.train.watch import RunHealth
from training import Ones

ONE = ("rl.minibatches=1", "rl.lr=1.0e-3")


class OnesSection(TaskSection):
    def build(self, count_tokens: object = None) -> Ones:
        return Ones()


@acts(
    "task.kind",
    ("numbers", {"numbers"}),
    ("keys.runs:OnesSection", {"ones"}),
    given=["rollout.max_tokens=160"],
)
def family_of_the_tasks(recipe: Recipe, lab: Lab) -> set[str]:
    out = lab.out()
    run_rl(recipe, lab.base, out)
    return {t.task.partition("/")[0] for t in jsonl.read(out / "trajectories/step-000001.jsonl")}


@acts("rl.steps", (1, 1), (2, 2))
def steps_of_a_run(recipe: Recipe, lab: Lab) -> int:
    return len(lab.reinforced(recipe)[1])


@acts("rl.prompts", (1, 4), (3, 12))
def rollouts_of_a_step(recipe: Recipe, lab: Lab) -> int:
    return lab.reinforced(recipe)[1][0]["rollouts"]


@acts("rl.lr", (1e-3, 1e-3), (1e-2, 1e-2), given=ONE[:1])
def largest_change_of_a_weight_in_a_step(recipe: Recipe, lab: Lab) -> float:
    """AdamW's first step moves every weight that has a gradient by the learning rate."""
    return figure(change(lab, lab.reinforced(recipe)))


@acts("rl.weight_decay", (0.0, 1.0), (100.0, 0.9), given=ONE)
def shrinkage_in_a_step(recipe: Recipe, lab: Lab) -> float:
    return shrinkage(lab, lab.reinforced(recipe))


@acts("rl.max_grad_norm", (1.0, True), (1e-12, False), given=ONE)
def a_step_moves_weights(recipe: Recipe, lab: Lab) -> bool:
    return change(lab, lab.reinforced(recipe)) > 5e-4


@acts("rl.checkpoint_every", (1, [3, 4]), (2, [2, 4]), given=["rl.steps=4"])
def checkpoints_of_a_run(recipe: Recipe, lab: Lab) -> list[int]:
    """The last two are kept."""
    folders = (lab.reinforced(recipe)[0] / "checkpoints").iterdir()
    return sorted(int(f.name.removeprefix("step-")) for f in folders)


@acts("run.seed", (0, True), (1, False))
def rollouts_that_are_sampled(recipe: Recipe, lab: Lab) -> bool:
    """Whether they are those of seed 0."""
    zero = recipe.model_copy(update={"run": recipe.run.model_copy(update={"seed": 0})})
    files = (lab.reinforced(r)[0] / "trajectories/step-000001.jsonl" for r in (recipe, zero))
    one, other = ([t.text for t in jsonl.read(file)] for file in files)
    return one == other


@acts("run.keep_gb", (10.0, [1, 2, 3]), (1e-9, [3]), (0.0, []), given=["rl.steps=3"])
def steps_whose_rollouts_are_stored(recipe: Recipe, lab: Lab) -> list[int]:
    files = (lab.reinforced(recipe)[0] / "trajectories").glob("step-*")
    return sorted(int(file.name[5:11]) for file in files)


SCHEDULED = ("rl.steps=4", "rl.lr=1.0e-3")


@acts(
    "rl.schedule",
    ("constant", [1.0, 1.0, 1.0, 1.0]),
    ("linear", [1.0, 0.75, 0.5, 0.25]),
    ("cosine", [1.0, 0.85, 0.5, 0.15]),
    given=SCHEDULED,
)
def share_of_the_learning_rate_of_each_step(recipe: Recipe, lab: Lab) -> list[float]:
    return [round(line["lr"] / 1e-3, 2) for line in lab.reinforced(recipe)[1]]


@acts("rl.warmup_steps", (0, 1e-3), (2, 5e-4), (4, 2.5e-4), given=["rl.lr=1.0e-3", *ONE[:1]])
def largest_change_of_a_weight_in_the_first_step(recipe: Recipe, lab: Lab) -> float:
    return figure(change(lab, lab.reinforced(recipe)))


@acts("rl.max_sampled_tokens", (0, 4), (1, 1), given=["rl.steps=4"])
def steps_until_the_tokens_are_spent(recipe: Recipe, lab: Lab) -> int:
    return len(lab.reinforced(recipe)[1])


@acts("rl.max_cpu_seconds", (0.0, 3), (1e-3, 1), given=["rl.steps=3"])
def steps_until_the_seconds_are_spent(recipe: Recipe, lab: Lab) -> int:
    return len(lab.reinforced(recipe)[1])


@acts("rl.drift_alarm", (0.05, 1), (0.9, 0))
def alarm_after_a_rise_of_failures(recipe: Recipe, lab: Lab) -> float | None:
    """From one in ten of first tries to seven in ten."""
    lines = [{"first_tries": 40.0, "first_try_failures": 40 * rate} for rate in (0.1, 0.7) for _ in range(10)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DriftWarning)
        return RunHealth(recipe.rl, lines[:-1]).drift_after(lines[-1])["first_try_alarm"]
