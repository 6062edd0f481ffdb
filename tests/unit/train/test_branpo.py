"""BranPO: which rollouts resume, and the advantages of a group worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playing import call, play
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError
from retcon.core.types import Branch, Trajectory
from retcon.rollout.strategies.branpo import BranPO
from retcon.train.objective.branpo import ending_advantages
from retcon.train.objective.shaping import comparable
from retcon.train.update import to_samples

RL = load_recipe(None, ["rl.algorithm=dr_grpo", "rl.step_advantage=branpo", "strategy.kind=branpo"]).rl


def rollout(id: str, turns: int, *, right: bool) -> Trajectory:
    made = play([*[call("print(6*7)")] * (turns - 1), "It is 42."], {}).trajectory
    return replace(made, id=id, reward=float(right))


def resumed(one: Trajectory, id: str, at: int, turns: int, *, right: bool) -> Trajectory:
    tokens = len(one.prompt[0].ids or ())
    return replace(rollout(id, turns, right=right), branch=Branch(one.id, one.id, at, tokens, 1.0, 0.0))


A, B, C = rollout("a", 3, right=True), rollout("b", 3, right=False), rollout("c", 2, right=True)


@pytest.mark.parametrize(
    ("rewards", "turns", "chosen"),
    [
        ((1, 1, 1, 1), (3, 3, 3, 3), [(0, 2), (1, 2), (2, 2), (3, 2)]),  # all right: each once
        ((0, 0, 0, 1), (3, 4, 1, 3), [(0, 2), (1, 3), (2, 0), (3, 2)]),
        ((1, 1, 1, 0), (2, 2, 5, 3), [(0, 1), (1, 1), (2, 3), (3, 2)]),  # the third is right, and longer than others
    ],
)
def test_rollouts_resume_near_their_end(rewards: tuple[int, ...], turns: tuple[int, ...], chosen: object) -> None:
    group = [rollout(str(n), t, right=bool(r)) for n, (r, t) in enumerate(zip(rewards, turns, strict=True))]
    assert BranPO().resume(group) == chosen
    assert BranPO().resume([replace(one, stop="length") for one in group]) == []


def test_a_wrong_rollout_resumes_ever_earlier_until_it_ends_otherwise() -> None:
    wrong = rollout("w", 4, right=False)
    group, points = [wrong], []
    for n in range(8):
        points += [turns for _, turns in BranPO().resume(group)]
        group.append(resumed(wrong, f"w{n}", 1, 4, right=False))
    assert points == [3, 3, 2, 2, 1, 1], "six tries"
    assert BranPO().resume([wrong, resumed(wrong, "x", 3, 4, right=True)]) == []


def test_where_half_is_right_a_wrong_rollout_has_four_tries() -> None:
    right, wrong = rollout("r", 4, right=True), rollout("w", 4, right=False)
    group, points = [right, wrong], []
    for n in range(6):
        points += [turns for at, turns in BranPO().resume(group) if group[at] is wrong]
        group.append(resumed(wrong, f"w{n}", 1, 4, right=False))
    assert points == [3, 3, 2, 2]


def test_endings_are_compared_and_beginnings_by_what_followed() -> None:
    """Â is the reward less the mean: of 1, 0, 1, 1 for endings, of A's 1 and the mean of B and X for beginnings."""
    x, alike = resumed(B, "x", 1, 3, right=True), resumed(B, "y", 2, 3, right=False)
    group = comparable([A, B, C, x, alike], RL)
    assert group == [A, B, C, x], "what ended alike is left out"
    advantages = RL.advantages([one.reward or 0.0 for one in group])
    assert advantages == [0.25, -0.75, 0.25, 0.25]
    assert ending_advantages(group, advantages, RL) == [
        [0.25, 0.25, 0.25],  # one turn before its last two
        [-0.25, -0.75, -0.75],
        [0.25, 0.25],
        [0.0, 0.25, 0.25],
    ]
    parent, branch = (to_samples(group, advantages, RL)[n] for n in (1, 3))
    assert branch.mask[: x.branch.tokens if x.branch else 0].count(1) == 0
    assert sum(parent.mask) >= sum(branch.mask)


def test_the_longer_of_two_right_endings_does_not_begin_with_praise() -> None:
    """Three of four are right, one after four turns; from its third turn on, another one needs one less."""
    long, wrong = rollout("l", 4, right=True), rollout("w", 2, right=False)
    short = resumed(long, "s", 2, 3, right=True)
    group = comparable([long, C, rollout("d", 2, right=True), wrong, short], RL)
    assert len(group) == 5
    found = ending_advantages(group, [0.2, 0.2, 0.2, -0.8, 0.2], RL)
    assert found[0] == [0.0, 0.0, 0.0, 0.2], (
        "a single beginning is compared with none; the first turn of its end is redundant"
    )
    assert found[-1] == [0.0, 0.0, 0.2]


def test_its_advantages_need_its_strategy() -> None:
    with pytest.raises(RecipeError, match=r"set strategy.kind = 'branpo'"):
        load_recipe(None, ["rl.step_advantage=branpo"])
