"""Rewards near the limit, and which tokens a failed turn has."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playing import call, hermes_call, play
from retcon.config.schema import Recipe, RLSection
from retcon.core.types import Trajectory, history_ids, to_sample
from retcon.train.objective.shaping import (
    comparable,
    has_void_turn,
    in_failed_turns,
    overlong_punishment,
    rewards_of,
)


@pytest.mark.parametrize(
    ("length", "punishment"), [(10, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (130, -1.0)]
)
def test_the_punishment_falls_in_a_straight_line(length: int, punishment: float) -> None:
    assert overlong_punishment(length, 100, 20, 1.0) == pytest.approx(punishment)


@given(st.integers(0, 300), st.integers(1, 99), st.floats(0.01, 5))
def test_it_lies_between_none_and_all_of_it_and_never_rises(length: int, buffer: int, penalty: float) -> None:
    one, more = (overlong_punishment(n, 100, buffer, penalty) for n in (length, length + 1))
    assert -penalty <= more <= one <= 0


def test_what_the_model_wrote_in_a_failed_turn_and_nothing_else() -> None:
    trajectory = play([call("fail()"), call("print(y)"), "42"], {"fail()": "error"}).trajectory
    found = in_failed_turns(trajectory)
    assert len(found) == len(history_ids(trajectory))
    learnt = to_sample(trajectory, scored=False).mask
    failed, *others = (sum(len(s.ids or ()) for s in turn.generated) for turn in trajectory.turns)
    assert sum(found) == failed
    assert sum(learnt) == failed + sum(others)
    assert all(m for m, f in zip(learnt, found, strict=True) if f)


@pytest.mark.parametrize(
    ("replies", "answer", "void"),
    [
        ([call("print(y)"), "42"], "42", False),
        ([call("print(y)"), "nothing"], None, True),
        ([call("print(y)")] * 6, None, False),
        ([call("x" * 3000)], None, True),
        (["<tool_call>{</tool_call>", "42"], "42", True),
        ([hermes_call("print(y)", name="pyhton"), "42"], "42", True),
        ([hermes_call("x", name="pyhton") + hermes_call("print(y)"), "42"], "42", False),
    ],
    ids=["answered", "without an answer", "out of turns", "cut off", "malformed", "no such tool", "another beside it"],
)
def test_void_turns(replies: list[str], answer: str | None, void: bool) -> None:
    """answer: what the grader read."""
    style = "hermes" if replies[0].startswith("<") else "markdown"
    trajectory = play(replies, {}, style=style).trajectory
    assert has_void_turn(replace(trajectory, answer=answer)) == void


def test_an_ungraded_rollout_is_refused() -> None:
    with pytest.raises(ValueError, match="no reward"):
        rewards_of([play(["42"], {}).trajectory])


def group(*stops: str) -> list[Trajectory]:
    """One rollout for each stop; those that answer are right, the others wrong."""
    return [
        Trajectory(f"t/{n}", "t", (), (), None if stop == "infrastructure" else 1.0 if stop == "answer" else -1.0, stop)  # type: ignore[arg-type]
        for n, stop in enumerate(stops)
    ]


def compared(rollouts: list[Trajectory], **keys: object) -> list[float | None]:
    rl = Recipe.model_validate({"rl": keys}).rl
    return [t.reward for t in comparable(rollouts, rl)]


def test_rollouts_that_faults_ended_are_not_compared() -> None:
    assert compared(group("answer", "infrastructure", "turns")) == [1, -1]
    assert compared(group("infrastructure", "answer", "infrastructure")) == compared([]) == []


def test_masked_rollouts_are_compared_only_where_the_recipe_says_so() -> None:
    four = group("answer", "answer", "answer", "length")
    assert compared(four) == compared(four, truncated="mask", masked_in_baseline=True) == [1, 1, 1, -1]
    assert compared(four, truncated="mask") == [1, 1, 1]
    assert compared(four, failed_calls="mask") == [1, 1, 1, -1], "turns are masked, not rollouts"
    assert compared(group("answer", "length", "length"), truncated="mask") == [], "one has no sibling"
    assert compared(group("length", "length"), truncated="mask") == []


@pytest.mark.parametrize("name", RLSection.kinds.names)
def test_no_algorithm_learns_from_three_right_ones_beside_a_masked_one(name: str) -> None:
    """A whole step of such groups: REINFORCE++ compares groups with each other, too."""
    four, keys = group("answer", "answer", "answer", "length"), {"algorithm": name, "truncated": "mask"}
    for kept, learns in ((False, False), (True, True)):
        rl = Recipe.model_validate({"rl": {**keys, "masked_in_baseline": kept}}).rl
        (advantages,) = rl.advantages_of_step([rewards_of(comparable(four, rl))])
        assert any(advantages[:3]) is learns
