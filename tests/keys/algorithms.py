"""[rl]: what an algorithm makes of rewards and ratios, and what is left out of the loss."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace

import torch

from keys.acting import Lab, acts
from keys.updates import RATIO, model, sample, updated
from retcon.config.schema import Recipe
from retcon.core.errors import ComputeWarning
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn
from retcon.rollout.context import RolloutLimits
from retcon.train.objective.shaping import comparable, rewards_of, shaped_rewards
from retcon.train.update import to_samples, update

ONE = ["rl.minibatches=1"]


def loss_of(recipe: Recipe, lab: Lab, *, change: float = 0.0, reference: bool = False) -> dict[str, float | None]:
    """Metrics of an update on a right and a wrong rollout of four tokens; `reference`: with π_ref, half as likely to
    write each of them."""
    trained = copy.deepcopy(model(str(lab.base)))
    samples = [sample(lab, 4, 1.0, change=change), sample(lab, 4, -1.0, change=change)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComputeWarning)
        return update(
            trained, torch.optim.SGD(trained.parameters()), samples, recipe.rl, seed=recipe.run.seed, step=1,
            reference=model(str(lab.base)) if reference else None,
        )  # fmt: skip


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@acts("rl.dual_clip", (0.0, 4.0), (3.0, 3.0), given=ONE)
def what_a_wrong_token_costs_that_is_four_times_as_likely(recipe: Recipe, lab: Lab) -> float | None:
    return rounded(updated(recipe, lab, sample(lab, 4, -1.0, change=math.log(4))).metrics["loss"])


@acts("rl.entropy_advantage", (0.0, True), (0.5, False), given=[*ONE, "rl.algorithm=aepo"])
def whether_all_tokens_of_a_right_rollout_weigh_the_same(recipe: Recipe, lab: Lab) -> bool:
    """π as it was: the loss of Â = 1 is -1 then, and with other weights, whose mean is 1, of tokens that are twice as
    likely as they were for the first half, it is not what plain ones give."""
    one = sample(lab, 4, 1.0)
    learnt = [n for n, m in enumerate(one.mask) if m]
    far = replace(one, logprobs=tuple(p and p - math.log(1.1) * (n in learnt[:2]) for n, p in enumerate(one.logprobs)))
    return rounded(updated(recipe, lab, far).metrics["loss"]) == -1.05


@acts("rl.loss_tokens", (1, -4.0), (8, -0.5), given=[*ONE, "rl.algorithm=dr_grpo"])
def what_four_tokens_are_divided_by(recipe: Recipe, lab: Lab) -> float | None:
    return rounded(updated(recipe, lab, sample(lab, 4, 1.0)).metrics["loss"])


@acts(
    "rl.baseline", ("group", [[0.0, 0.0], [1.2247, -1.2247]]), ("none", [[0.5, 0.5], [0.5, -1.5]]),
    given=["rl.algorithm=reinforce_pp"],
)  # fmt: skip
def advantages_of_an_easy_and_a_hard_prompt(recipe: Recipe, lab: Lab) -> list[list[float | None]]:
    return [[rounded(a) for a in group] for group in recipe.rl.advantages_of_step([[1.0, 1.0], [1.0, -1.0]])]


RECOMPUTED = [*ONE, "rl.old_logprobs=recompute"]


@acts(
    "rl.correction", ("none", -1.0), ("token_truncate", -1.2), ("token_mask", 0.0), ("sequence_truncate", -1.3),
    ("sequence_mask", -0.0),
    given=[*RECOMPUTED, "rl.correction_cap=1.2"],
)  # fmt: skip
def weight_of_what_the_trainer_finds_likelier(recipe: Recipe, lab: Lab) -> float | None:
    """1.25 times as likely: beyond the cap by token, and by sequence of four."""
    if recipe.rl.correction == "sequence_truncate":
        recipe = recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"correction_cap": 1.3})})
    return rounded(updated(recipe, lab, sample(lab, 4, 1.0, change=RATIO)).metrics["loss"])


@acts("rl.correction_cap", (1.1, -1.1), (9.0, -1.25), given=[*RECOMPUTED, "rl.correction=token_truncate"])
def weight_at_most(recipe: Recipe, lab: Lab) -> float | None:
    return rounded(updated(recipe, lab, sample(lab, 4, 1.0, change=RATIO)).metrics["loss"])


@acts("rl.kl", (0.0, None), (0.5, 0.0))
def how_far_a_reference_is_at_the_start_if_there_is_one(recipe: Recipe, lab: Lab) -> float | None:
    """A run of one step: its first minibatch starts from π_ref itself."""
    one = recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"minibatches": 1})})
    _, lines = lab.reinforced(one)
    return rounded(lines[0]["kl_reference"])


@acts("rl.kl_estimator", ("k1", False), ("k3", True), given=["rl.kl=0.1", "rl.minibatches=2"])
def whether_the_penalty_cannot_be_negative(recipe: Recipe, lab: Lab) -> bool:
    """After one minibatch that made its own tokens less likely: k1 of them is negative, k3 never is."""
    trained = copy.deepcopy(model(str(lab.base)))
    samples = [sample(lab, 4, -1.0), sample(lab, 4, -1.0)]
    metrics = update(
        trained, torch.optim.SGD(trained.parameters(), lr=0.1), samples, recipe.rl, seed=0, step=1,
        reference=model(str(lab.base)),
    )  # fmt: skip
    found = metrics["kl_reference"]
    assert found
    return found > 0


@acts("rl.max_kl", (0.0, 0.0), (0.01, 1.0), given=ONE)
def whether_a_far_minibatch_is_skipped(recipe: Recipe, lab: Lab) -> float | None:
    return loss_of(recipe, lab, change=RATIO)["skipped"]


def rollout(*, status: str = "ok", stop: str = "answer") -> Trajectory:
    """A call with that status, and an answer, or what was cut off."""
    call = ToolCall("0", "python", {"code": "x"}, char=0, start=0)
    seen = Segment("observation", "o", (9,))
    calling = Turn(
        (Segment("sampled", "c", (3, 4), (-1.0, -1.0)), seen), (call,), (Observation("0", "o", status),), "call"
    )  # type: ignore[arg-type]
    ending = Turn((Segment("sampled", "a", (5,), (-1.0,)),), stop="length" if stop == "length" else "answer")
    prompt = (Segment("prompt", "p", (1,)),)
    answer = None if stop == "void" else "5"
    ended = "length" if stop == "length" else "answer"
    return Trajectory("t/0", "t", prompt, (calling, ending), reward=1.0, stop=ended, answer=answer)  # type: ignore[arg-type]


def masks(recipe: Recipe, *rollouts: Trajectory) -> list[tuple[int, ...]]:
    return [s.mask for s in to_samples(rollouts, [1.0] * len(rollouts), recipe.rl)]


ALL, NONE = (0, 1, 1, 0, 1), (0, 0, 0, 0, 0)


@acts("rl.failed_calls", ("keep", [ALL, ALL]), ("mask", [(0, 0, 0, 0, 1), ALL]))
def tokens_of_a_failed_call(recipe: Recipe, lab: Lab) -> list[tuple[int, ...]]:
    return masks(recipe, rollout(status="error"), rollout())


@acts("rl.blame", (0.0, [(1.0,) * 5] * 2), (0.5, [(1.0, -0.5, -0.5, 1.0, 1.0), (1.0,) * 5]))
def advantages_of_a_failed_call_in_a_right_rollout(recipe: Recipe, lab: Lab) -> list[tuple[float, ...] | None]:
    samples = to_samples([rollout(status="error"), rollout()], [1.0, 1.0], recipe.rl)
    return [sample.advantages for sample in samples]


@acts("rl.void_turns", ("keep", [ALL, ALL, ALL]), ("mask", [NONE, NONE, ALL]))
def rollouts_with_a_void_turn(recipe: Recipe, lab: Lab) -> list[tuple[int, ...]]:
    return masks(recipe, rollout(stop="void"), rollout(stop="length"), rollout())


@acts("rl.truncated", ("keep", [ALL, ALL]), ("mask", [NONE, ALL]))
def rollouts_that_were_cut_off(recipe: Recipe, lab: Lab) -> list[tuple[int, ...]]:
    return masks(recipe, rollout(stop="length"), rollout(stop="void"))


@acts("rl.masked_in_baseline", (False, [[0.0, 0.0]]), (True, [[0.5773, 0.5773, -1.1547]]), given=["rl.truncated=mask"])
def advantages_of_two_right_rollouts_and_one_that_was_cut_off(recipe: Recipe, lab: Lab) -> list[list[float | None]]:
    left = comparable([rollout(), rollout(), replace(rollout(stop="length"), reward=-1.0)], recipe.rl)
    return [[rounded(a) for a in group] for group in recipe.rl.advantages_of_step([rewards_of(left)])]


def reward_of_five_tokens(recipe: Recipe) -> float:
    return shaped_rewards([rollout()], recipe.rl, RolloutLimits(6, 1))[0]


@acts("rl.overlong_buffer", (0, 1.0), (2, 0.5), (4, 0.25))
def reward_near_the_limit(recipe: Recipe, lab: Lab) -> float:
    return reward_of_five_tokens(recipe)


@acts("rl.overlong_penalty", (1.0, 0.5), (0.2, 0.9), given=["rl.overlong_buffer=2"])
def punishment_near_the_limit(recipe: Recipe, lab: Lab) -> float:
    return reward_of_five_tokens(recipe)
