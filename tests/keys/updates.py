"""[rl]: the samples of a group, and what an update makes of them."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from keys.acting import Lab, acts
from retcon.config.schema import Recipe
from retcon.core.errors import ComputeWarning
from retcon.core.types import Branch, Observation, Parent, RepairRecord, Sample, Segment, ToolCall, Trajectory, Turn
from retcon.models.devices import DEFAULT_COMPUTING
from retcon.models.placing import start_model
from retcon.rollout.context import RolloutLimits
from retcon.train.batch import collate
from retcon.train.kernels.logprobs import token_logprobs
from retcon.train.objective.contrast import with_hindsight
from retcon.train.objective.tree import CreditedGroup, credit_groups
from retcon.train.update import to_samples, update

RATIO = math.log(1.25)
"""What the model has become: 1.25 times, or in the other direction 1 / 1.25 = 0.8 times, as likely to write an id."""


@cache
def model(lab_base: str) -> Any:
    return start_model(lab_base, 0)


def sample(lab: Lab, learnt: int, advantage: float, *, change: float = 0.0, spliced: bool = False) -> Sample:
    """`learnt` ids after two, each written with a log-prob that since has changed by `change`, nats."""
    ids = tuple(range(5, 7 + learnt))
    mask = (0, 0) + (1,) * learnt
    kinds = mask if spliced else (0,) * len(ids)
    made = Sample(ids, mask, (None,) * len(ids), kinds, (advantage,) * len(ids))
    batch = collate([made])
    with torch.no_grad():
        now = token_logprobs(model(str(lab.base)), batch.ids, batch.mask)[0].tolist()
    return replace(made, logprobs=tuple(p - change if m else None for p, m in zip(now, mask, strict=True)))


@dataclass
class Updated:
    """metrics: of the update. steps: of the optimiser."""

    metrics: dict[str, float | None]
    steps: int


def updated(recipe: Recipe, lab: Lab, *samples: Sample) -> Updated:
    trained = copy.deepcopy(model(str(lab.base)))
    optimizer = torch.optim.SGD(trained.parameters())
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComputeWarning)  # log-probs that are off on purpose
        metrics = update(trained, optimizer, samples, recipe.rl, seed=recipe.run.seed, step=1)
    return Updated(metrics, len(steps))


@acts("rl.algorithm", ("dapo", 0.125), ("grpo", -0.25), given=["rl.minibatches=1"])
def mean_over_ids_or_over_samples(recipe: Recipe, lab: Lab) -> float:
    """Two ids of advantage 1 and six of -1/2: by ids -(2 - 3) / 8, by samples -(1 - 1/2) / 2."""
    found = updated(recipe, lab, sample(lab, 2, 1.0), sample(lab, 6, -0.5))
    return round(found.metrics["loss"] or 0.0, 5)


@acts("rl.minibatches", (1, 1), (3, 3))
def steps_of_the_optimiser(recipe: Recipe, lab: Lab) -> int:
    return updated(recipe, lab, *(sample(lab, n, 1.0) for n in (2, 3, 4))).steps


@acts("rl.epochs", (1, 2), (3, 6), given=["rl.minibatches=2"])
def steps_of_the_optimiser_in_all_epochs(recipe: Recipe, lab: Lab) -> int:
    return updated(recipe, lab, sample(lab, 2, 1.0), sample(lab, 3, 1.0)).steps


@acts("rl.entropy_coefficient", (0.0, (0.0, True)), (0.5, (-3.8, False)), given=["rl.minibatches=1"])
def loss_and_gradient_of_rollouts_without_an_advantage(recipe: Recipe, lab: Lab) -> tuple[float, bool]:
    """The entropy of an untrained model is nearly that of the uniform distribution over its vocabulary."""
    found = updated(recipe, lab, sample(lab, 4, 0.0)).metrics
    return round(found["loss"] or 0.0, 1), found["grad_norm"] == 0.0


def clipped(recipe: Recipe, lab: Lab) -> list[float | None]:
    """Of ids that became 1.25 times as likely and were right, and 0.8 times and were wrong, how many are cut off."""
    samples = (sample(lab, 4, 1.0, change=RATIO), sample(lab, 4, -1.0, change=-RATIO))
    return [updated(recipe, lab, one).metrics["clip_fraction"] for one in samples]


CLIP = ("rl.clip_low=0.9", "rl.clip_high=0.9")


@acts("rl.clip_low", (0.19, [0.0, 1.0]), (0.21, [0.0, 0.0]), given=CLIP)
def bound_on_what_is_less_likely(recipe: Recipe, lab: Lab) -> list[float | None]:
    return clipped(recipe, lab)


@acts("rl.clip_high", (0.24, [1.0, 0.0]), (0.26, [0.0, 0.0]), given=CLIP)
def bound_on_what_is_more_likely(recipe: Recipe, lab: Lab) -> list[float | None]:
    return clipped(recipe, lab)


@acts("rl.mask_negative_spliced", (False, True), (True, False))
def gradient_of_a_bad_splice(recipe: Recipe, lab: Lab) -> bool:
    return bool(updated(recipe, lab, sample(lab, 4, -1.0, spliced=True)).metrics["grad_norm"])


@acts("rl.old_logprobs", ("engine", True), ("recompute", False))
def distance_from_the_log_probs_of_the_rollouts(recipe: Recipe, lab: Lab) -> bool:
    kl = updated(recipe, lab, sample(lab, 4, 1.0, change=RATIO)).metrics["kl"]
    return kl is not None and kl > 1e-3


def weights_of_a_splice(recipe: Recipe) -> list[float | None] | None:
    """Its ids: a prompt's, and one that is e times as likely under the purified history as it was in the lookahead."""
    fixed = ToolCall("0", "python", {"code": "x"}, char=0, start=0)
    fix = Turn((Segment("sampled", "c", (3,), (-2.0,)),), (fixed,), stop="call")
    turn = Turn((Segment("spliced", "c", (3,), (-1.0,)),), (fixed,), abandoned=(fix,), repair=RepairRecord("deep", 1))
    spliced = Trajectory("t/0", "t", (Segment("prompt", "a", (1,)),), (turn,), reward=1.0)
    other = replace(spliced, turns=(Turn((Segment("sampled", "b", (2,), (-1.0,)),)),), reward=-1.0)
    weights = to_samples([spliced, other], [1.0, -1.0], recipe.rl)[0].weights
    return None if weights is None else [None if w is None else round(w, 3) for w in weights]


@acts("rl.splice_weight", ("none", None), ("truncated", [None, 2.0]), ("accept", [None, 1.0]))
def weight_of_a_splice(recipe: Recipe, lab: Lab) -> list[float | None] | None:
    return weights_of_a_splice(recipe)


@acts("rl.splice_weight_cap", (1.5, [None, 1.5]), (9.0, [None, 2.718]), given=['rl.splice_weight="truncated"'])
def weight_of_a_splice_at_most(recipe: Recipe, lab: Lab) -> list[float | None] | None:
    return weights_of_a_splice(recipe)


@acts("rl.imitate_spliced", (0.0, True), (0.5, False))
def clip_on_a_splice_that_became_likelier(recipe: Recipe, lab: Lab) -> bool:
    found = updated(recipe, lab, sample(lab, 4, 1.0, change=2 * RATIO, spliced=True))
    return bool(found.metrics["clip_fraction"])


def outputs_of_a_rollout(recipe: Recipe) -> Sample:
    """A call that works and one that fails, with outputs of one and two ids."""
    calls = [ToolCall(f"c{n}", "python", {}, 0) for n in range(2)]
    turns = [
        Turn(
            (Segment("sampled", "a", (4,), (-1.0,)), Segment("observation", "o", ids)),
            (call,),
            (Observation(call.id, "o", status),),
            stop="call",
        )
        for call, ids, status in zip(calls, ((5,), (6, 7)), ("ok", "error"), strict=True)
    ]
    return to_samples([Trajectory("t/0", "t", (Segment("prompt", "p", (1, 2)),), tuple(turns))], [0.0], recipe.rl)[0]


def tree(reward: float | None = None) -> Trajectory:
    """A rollout of reward 1 with two children."""
    root = Trajectory("a", "t", (Segment("prompt", "p", (1, 2)),), (turn_of("0.0.0"),), reward=1.0)
    parent = Parent("a", 0, "0.0.0")
    below = (replace(root, id=f"a/{n}", reward=reward, parent=parent) for n in range(2))
    return replace(root, children=tuple(below))


def turn_of(call: str) -> Turn:
    return Turn((Segment("sampled", "x", (3,), (-0.1,)),), (ToolCall(call, "python", {}, 0),))


def nodes_of(recipe: Recipe, *group: Trajectory) -> CreditedGroup:
    ((found,), _) = credit_groups([group], recipe.rl, recipe.credit, RolloutLimits(100, 2))
    return found


@acts("credit.kind", ("root", 2), ("inherit", 4), ("node", 4))
def samples_of_two_rollouts_with_two_children(recipe: Recipe, lab: Lab) -> int:
    return len(nodes_of(recipe, tree(), replace(tree(), id="b", children=(), reward=-1.0)).nodes)


@acts("credit.weights", ("tree", 0.5), ("node", 1.0), given=["credit.kind=inherit"])
def weight_of_each_of_two_children(recipe: Recipe, lab: Lab) -> float:
    return nodes_of(recipe, tree()).scales.get("a/0", 1.0)


@acts("credit.delegation", (0.0, 1.0), (0.5, 1.25), given=["credit.kind=node"])
def reward_of_a_root_half_of_whose_children_succeed(recipe: Recipe, lab: Lab) -> float:
    root = tree(1.0)
    half = replace(root, children=(root.children[0], replace(root.children[1], reward=0.0)))
    return recipe.credit.rewards([half, *half.children], 1.0)["a"]


@acts("rl.echo", (0.0, (0.0, None)), (0.5, (0.5, 1.0)), given=["rl.minibatches=1"])
def loss_of_a_rollout_without_an_advantage(recipe: Recipe, lab: Lab) -> tuple[float, float | None]:
    """Its outputs are as surprising as ids of an untrained model are, in units of that: log of the vocabulary."""
    found = updated(recipe, lab, outputs_of_a_rollout(recipe)).metrics
    unit = math.log(model(str(lab.base)).config.vocab_size)
    surprise = found.get("echo")
    return round((found["loss"] or 0.0) / unit, 1), surprise and round(surprise / unit, 1)


@acts("rl.echo_outputs", ("all", (0, 0, 0, 1, 0, 1, 1)), ("failed", (0, 0, 0, 0, 0, 1, 1)), given=["rl.echo=0.5"])
def outputs_that_are_predicted(recipe: Recipe, lab: Lab) -> tuple[int, ...] | None:
    return outputs_of_a_rollout(recipe).predicted


def failed_turn(recipe: Recipe, lab: Lab, change: float) -> list[Sample]:
    """A failed call whose ids were written with log-probs that since have changed by `change` nats, and one more."""
    written = sample(lab, 2, 0.0, change=change)
    ids, logprobs = written.ids[2:], tuple(p for p in written.logprobs if p is not None)
    failed = Turn(
        (Segment("sampled", "a", ids, logprobs), Segment("observation", "o", (9,))),
        (ToolCall("c0", "python", {}, 0),),
        (Observation("c0", "o", "error"),),
        stop="call",
    )
    turns = (failed, Turn((Segment("sampled", "b", (10,), (-1.0,)),)))
    rollout = Trajectory("t/0", "t", (Segment("prompt", "p", written.ids[:2]),), turns)
    return to_samples([rollout], [0.0], recipe.rl)


@acts("rl.sdpo", (0.0, (None, False)), (1.0, (2, True)), given=["rl.minibatches=1"])
def tokens_and_gradient_of_a_failed_turn(recipe: Recipe, lab: Lab) -> tuple[float | None, bool]:
    found = updated(recipe, lab, *failed_turn(recipe, lab, 0.0)).metrics
    return found.get("sdpo_tokens"), found["grad_norm"] != 0.0


@acts("rl.sdpo_limit", (1.0, 1.0), (3.0, 3.0), given=["rl.sdpo=1.0"])
def advantage_of_what_became_ten_nats_likelier(recipe: Recipe, lab: Lab) -> float:
    rl, samples = recipe.rl, failed_turn(recipe, lab, 10.0)
    (found,), _ = with_hindsight(model(str(lab.base)), samples, DEFAULT_COMPUTING, weight=rl.sdpo, limit=rl.sdpo_limit)
    return max(found.advantages or ())


@acts("rl.shared_advantage", ("own", [1.0, -1.0]), ("mean", [0.0, 0.0]), ("siblings", [1.0]))
def advantages_of_what_a_branch_has_from_its_parent(recipe: Recipe, lab: Lab) -> list[float]:
    """Of the first sampled id, which both have, where it is learnt."""
    first = Turn((Segment("sampled", "a", (2,), (-1.0,)),))
    parent = Trajectory("t/0", "t", (Segment("prompt", "p", (1,)),), (first,), reward=1.0)
    second = Turn((Segment("sampled", "b", (3,), (-1.0,)),))
    branch = replace(parent, id="t/1", turns=(first, second), branch=Branch("t/0", "t/0", 1, 2, 1.0, 0.5))
    samples = to_samples([parent, branch], [1.0, -1.0], recipe.rl)
    return [one.advantages[1] for one in samples if one.advantages and one.mask[1]]


@acts("rl.step_advantage", ("none", [1.0, -1.0]), ("rtmc", [0.0, 0.0]))
def advantages_of_one_action_in_one_state(recipe: Recipe, lab: Lab) -> list[float]:
    """Return those of two rollouts that begin alike."""
    first = Turn((Segment("sampled", "a", (2,), (-1.0,)),))
    one = Trajectory("t/0", "t", (Segment("prompt", "p", (1,)),), (first,), reward=1.0)
    samples = to_samples([one, replace(one, id="t/1")], [1.0, -1.0], recipe.rl)
    return [sample.advantages[1] for sample in samples if sample.advantages]


@acts("rl.contrast", (0.0, []), (0.8, [-0.4, 0.4]))
def advantages_of_the_tries_at_a_turn(recipe: Recipe, lab: Lab) -> list[float]:
    return tries_at_a_turn(recipe, reward=1.0)


@acts("rl.contrast_rollouts", ("right", []), ("all", [-0.4, 0.4]), given=["rl.contrast=0.8"])
def advantages_of_the_tries_in_a_wrong_rollout(recipe: Recipe, lab: Lab) -> list[float]:
    return tries_at_a_turn(recipe, reward=-1.0)


def tries_at_a_turn(recipe: Recipe, reward: float) -> list[float]:
    _, *tries = to_samples([repaired(reward)], [0.0], recipe.rl)
    return [one.advantages[-1] for one in tries if one.advantages]


def repaired(reward: float) -> Trajectory:
    """A call of two ids after one of reasoning, in place of a call of one; neither is likelier than the other."""
    wrong = Turn(
        (Segment("sampled", "c", (3,), (-2.0,)),), (ToolCall("0", "python", {"code": "x"}, char=0, start=0),),
        (Observation("0", "o", "error"),), stop="call",
    )  # fmt: skip
    turn = Turn(
        (Segment("sampled", "def", (4, 5, 6), (-1.0, -1.5, -2.5)),),
        (ToolCall("0", "python", {"code": "y"}, char=1, start=1),),
        abandoned=(wrong,), repair=RepairRecord("resampled", 1),
    )  # fmt: skip
    return Trajectory("t/0", "t", (Segment("prompt", "a", (1,)),), (turn,), reward=reward)


def adjusted(recipe: Recipe) -> list[tuple[float, ...] | None]:
    """The advantages of a rollout that has none of its own, and of the call that was replaced in it."""
    return [one.advantages for one in to_samples([repaired(1.0)], [0.0], recipe.rl)]


@acts(
    "rl.dpo_beta",
    (0.0, [(0.0,) * 4]),
    (2.0, [(0.0, 0.0, 0.5, 0.5), (-1.0, -1.0)]),
    given=["rl.dpo_limit=9"],
)
def advantages_of_a_call_and_of_the_one_that_it_replaced(recipe: Recipe, lab: Lab) -> list[tuple[float, ...] | None]:
    return adjusted(recipe)


@acts(
    "rl.dpo_limit",
    (0.75, [(0.0, 0.0, 0.5, 0.5), (-0.75, -0.75)]),
    (0.25, [(0.0, 0.0, 0.25, 0.25), (-0.25, -0.25)]),
    given=["rl.dpo_beta=2"],
)
def advantages_of_both_calls_at_most(recipe: Recipe, lab: Lab) -> list[tuple[float, ...] | None]:
    return adjusted(recipe)
