"""[dpo]: what preference training makes of pairs."""

from __future__ import annotations

from keys.acting import Lab, acts
from keys.supervised import change, checkpoints, figure, shrinkage
from retcon.config.schema import Recipe


@acts("dpo.beta", (0.1, 0.1), (0.5, 0.5), given=["dpo.steps=2", "dpo.lr=1.0e-3", "dpo.batch=30"])
def weight_of_a_change_from_the_start(recipe: Recipe, lab: Lab) -> float:
    """A step of AdamW is the same whatever beta scales the gradient by, and so is how far it goes from the start."""
    doubled = recipe.model_copy(update={"dpo": recipe.dpo.model_copy(update={"beta": 1.0})})
    return round(lab.preferring(recipe)[1][1]["chosen"] / lab.preferring(doubled)[1][1]["chosen"], 2)


@acts("dpo.steps", (1, 1), (2, 2))
def steps_of_preference_training(recipe: Recipe, lab: Lab) -> int:
    return len(lab.preferring(recipe)[1])


@acts("dpo.batch", (10, False), (30, True), given=["dpo.lr=1.0e-3", "dpo.warmup=0.0"])
def a_step_sees_every_pair(recipe: Recipe, lab: Lab) -> bool:
    """Whether its gradient is that of all 30."""
    whole = recipe.model_copy(update={"dpo": recipe.dpo.model_copy(update={"batch": 30})})
    return lab.preferring(recipe)[1][0]["grad_norm"] == lab.preferring(whole)[1][0]["grad_norm"]


@acts("dpo.lr", (1e-3, 1e-3), (1e-2, 1e-2))
def largest_change_of_a_weight_in_a_preference_step(recipe: Recipe, lab: Lab) -> float:
    """AdamW's first step moves every weight that has a gradient by the learning rate."""
    return figure(change(lab, lab.preferring(recipe)))


@acts("dpo.warmup", (0.0, [1.0, 1.0]), (0.5, [0.5, 1.0]), given=["dpo.steps=4", "dpo.lr=1.0e-3"])
def share_of_the_learning_rate_in_the_first_preference_steps(recipe: Recipe, lab: Lab) -> list[float]:
    return [round(line["lr"] / 1e-3, 2) for line in lab.preferring(recipe)[1][:2]]


@acts("dpo.weight_decay", (0.0, 1.0), (100.0, 0.9), given=["dpo.lr=1.0e-3"])
def shrinkage_in_a_preference_step(recipe: Recipe, lab: Lab) -> float:
    return shrinkage(lab, lab.preferring(recipe))


@acts("dpo.max_grad_norm", (1.0, True), (1e-12, False), given=["dpo.lr=1.0e-3"])
def a_preference_step_moves_weights(recipe: Recipe, lab: Lab) -> bool:
    """A gradient that is cut down to less than AdamW's epsilon moves none by its learning rate."""
    return change(lab, lab.preferring(recipe)) > 5e-4


@acts("dpo.checkpoint_every", (1, [3, 4]), (2, [2, 4]), given=["dpo.steps=4"])
def checkpoints_of_preference_training(recipe: Recipe, lab: Lab) -> list[int]:
    return checkpoints(lab.preferring(recipe))
