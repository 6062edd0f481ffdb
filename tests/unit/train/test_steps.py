"""RTMC's advantages of steps, on a group worked out by hand."""

from __future__ import annotations

import pytest

from playing import call, play
from retcon.core.types import history_ids, to_sample
from retcon.train.objective.credit import count_shared_states, spread_over_tokens, step_advantages

FAILS = {"print(vlue)": "error"}
RIGHT, SPACED, WRONG = call("print(6*7)"), call("print( 6 * 7 )"), call("print(vlue)")
GROUP = [
    play(replies, FAILS).trajectory
    for replies in ([RIGHT, "It is 42."], [SPACED, "It is 41."], [WRONG, RIGHT, "It is 42."], [WRONG, "42, I guess."])
]
ADVANTAGES = [0.25, -0.75, 0.25, 0.25]  # of the rewards 1, 0, 1, 1 less their mean


def test_each_turn_is_compared_with_the_others_in_its_state() -> None:
    assert step_advantages(GROUP, ADVANTAGES) == [
        # The right program, however it is spaced, came to .25 and -.75, the failing one to .25 twice; the mean is 0.
        [-0.25, 0.25 - -0.25],
        [-0.25, -0.75 - -0.25],
        # After the error both came to .25; only the third rollout was in the next state, and keeps its .25 there.
        [0.25, 0.0, 0.25],
        [0.25, 0.0],
    ]
    assert count_shared_states(GROUP) == 4


def test_steps_without_company_keep_the_rollouts_advantage() -> None:
    alone = [GROUP[0], GROUP[2]]
    first, second = step_advantages(alone, [1.0, -1.0])
    assert first[1:] == [1.0]
    assert second[1:] == [-1.0, -1.0]
    assert count_shared_states(alone) == 0


@pytest.mark.parametrize("trajectory", GROUP)
def test_a_token_of_the_model_has_its_turns_advantage(trajectory) -> None:
    values = [float(n + 1) for n in range(len(trajectory.turns))]
    spread, mask = spread_over_tokens(trajectory, values), to_sample(trajectory, scored=False).mask
    assert len(spread) == len(history_ids(trajectory))
    assert [bool(one) for one in spread] == [bool(m) for m in mask]
    assert sorted({one for one in spread if one}) == values
