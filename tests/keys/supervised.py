"""[sft]: demonstrations, and runs that learn from them; [dpo]: what training makes of pairs; [model] path."""

from __future__ import annotations

from safetensors.torch import load_file
from torch import Tensor

from keys.acting import Lab, Made, acts, run
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.train.demos.making import demonstrations

EMBEDDING = "model.embed_tokens.weight"


def embeddings(lab: Lab, made: Made) -> tuple[Tensor, Tensor]:
    """Before and after a run."""
    before, after = (load_file(f / "model.safetensors")[EMBEDDING] for f in (lab.base, made[0] / "final"))
    return before, after


def change(lab: Lab, made: Made) -> float:
    """Of the weight of the embedding that a run changed most."""
    before, after = embeddings(lab, made)
    return (after - before).abs().max().item()


def shrinkage(lab: Lab, made: Made) -> float:
    """Of the embedding, which AdamW multiplies by 1 - lr · decay."""
    before, after = embeddings(lab, made)
    return round(float(after.norm() / before.norm()), 2)


def checkpoints(made: Made) -> list[int]:
    """Steps of those that are there: the last two are kept."""
    return sorted(int(f.name.removeprefix("step-")) for f in (made[0] / "checkpoints").iterdir())


def figure(value: float) -> float:
    """With two digits that count."""
    return float(f"{value:.1e}")


@acts("model.path", ("LAB/base", 64), ("scratch", 128))
def width_of_what_is_trained(recipe: Recipe, lab: Lab) -> int:
    return load_file(lab.supervised(recipe)[0] / "final/model.safetensors")[EMBEDDING].shape[1]


def demonstrated(recipe: Recipe, lab: Lab) -> list[Trajectory]:
    return run(demonstrations(recipe, Chat(load_tokenizer(lab.base))))


ROOM = ("rollout.max_tokens=2000", "rollout.max_turns=6")


@acts("sft.demonstrations", (2, 2), (5, 5), given=ROOM)
def demonstrations_that_are_made(recipe: Recipe, lab: Lab) -> int:
    return len(demonstrated(recipe, lab))


@acts("sft.max_turns", (1, 1), (3, 3), given=(*ROOM, "sft.demonstrations=20"))
def turns_of_the_longest_demonstration(recipe: Recipe, lab: Lab) -> int:
    return max(len(t.turns) for t in demonstrated(recipe, lab))


@acts("sft.steps", (1, 1), (2, 2))
def supervised_steps(recipe: Recipe, lab: Lab) -> int:
    return len(lab.supervised(recipe)[1])


@acts("sft.batch", (10, 1), (20, 2), (30, 3), given=["sft.steps=3"])
def times_that_30_demonstrations_are_gone_through(recipe: Recipe, lab: Lab) -> int:
    """In three steps; ids of all steps over ids of all demonstrations."""
    whole = lab.supervised(recipe.model_copy(update={"sft": recipe.sft.model_copy(update={"batch": 30, "steps": 1})}))
    return round(sum(line["tokens"] for line in lab.supervised(recipe)[1]) / whole[1][0]["tokens"])


@acts("sft.aggregate", ("token", True), ("sequence", False))
def all_tokens_of_a_batch_weigh_alike(recipe: Recipe, lab: Lab) -> bool:
    """Whether the first loss is that of `token`."""
    plain = recipe.model_copy(update={"sft": recipe.sft.model_copy(update={"aggregate": "token"})})
    return lab.supervised(recipe)[1][0]["loss"] == lab.supervised(plain)[1][0]["loss"]


@acts("sft.lr", (1e-3, 1e-3), (1e-2, 1e-2))
def largest_change_of_a_weight_in_a_supervised_step(recipe: Recipe, lab: Lab) -> float:
    """AdamW's first step moves every weight that has a gradient by the learning rate."""
    return figure(change(lab, lab.supervised(recipe)))


@acts("sft.warmup", (0.0, [1.0, 1.0]), (0.5, [0.5, 1.0]), given=["sft.steps=4", "sft.lr=1.0e-3"])
def share_of_the_learning_rate_in_the_first_steps(recipe: Recipe, lab: Lab) -> list[float]:
    """There is always one step up, and then a cosine down that begins at the top."""
    return [round(line["lr"] / 1e-3, 2) for line in lab.supervised(recipe)[1][:2]]


@acts(
    "sft.schedule",
    ("cosine", [1.0, 0.75, 0.25]),
    ("linear", [1.0, 0.67, 0.33]),
    ("constant", [1.0, 1.0, 1.0]),
    given=["sft.steps=4", "sft.lr=1.0e-3", "sft.warmup=0.0"],
)
def share_of_the_learning_rate_in_later_steps(recipe: Recipe, lab: Lab) -> list[float]:
    return [round(line["lr"] / 1e-3, 2) for line in lab.supervised(recipe)[1][1:]]


@acts("sft.weight_decay", (0.0, 1.0), (100.0, 0.9), given=["sft.lr=1.0e-3"])
def shrinkage_in_a_supervised_step(recipe: Recipe, lab: Lab) -> float:
    return shrinkage(lab, lab.supervised(recipe))


@acts("sft.max_grad_norm", (1.0, True), (1e-12, False), given=["sft.lr=1.0e-3"])
def a_supervised_step_moves_weights(recipe: Recipe, lab: Lab) -> bool:
    """A gradient that is cut down to less than AdamW's epsilon moves none by its learning rate."""
    return change(lab, lab.supervised(recipe)) > 5e-4


@acts("sft.checkpoint_every", (1, [3, 4]), (2, [2, 4]), given=["sft.steps=4"])
def supervised_checkpoints(recipe: Recipe, lab: Lab) -> list[int]:
    return checkpoints(lab.supervised(recipe))


@acts("run.seed", (0, True), (1, False))
def order_of_demonstrations(recipe: Recipe, lab: Lab) -> bool:
    """Whether the first batch is that of seed 0."""
    zero = recipe.model_copy(update={"run": recipe.run.model_copy(update={"seed": 0})})
    return lab.supervised(recipe)[1][0]["loss"] == lab.supervised(zero)[1][0]["loss"]


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
