"""Advantages against cases worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.train.algorithms.reinforce_pp import ReinforcePP
from retcon.train.objective.advantage import dr_grpo, grpo, rloo

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


def test_one_right_of_four():
    # mean -0.5; squared deviations 2.25 + 3 · 0.25 = 3, over G - 1 = 3: std 1
    assert grpo([1.0, -1.0, -1.0, -1.0], epsilon=0.0) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_epsilon_is_added_to_the_deviation():
    # mean 0, std √(2 / 1)
    assert grpo([1.0, -1.0], epsilon=0.1) == pytest.approx([1 / (math.sqrt(2) + 0.1), -1 / (math.sqrt(2) + 0.1)])


def test_dr_grpo_does_not_scale():
    assert dr_grpo([1.0, -1.0, -1.0, -1.0]) == [1.5, -0.5, -0.5, -0.5]


@pytest.mark.parametrize("advantage", [grpo, dr_grpo])
@pytest.mark.parametrize("group", [[0.1] * 3, [0.1] * 7, [-1.0] * 8, [3.0]])
def test_a_group_without_variance_has_no_advantage_exactly(advantage, group):
    assert advantage(group) == [0.0] * len(group)


def test_reinforce_pp_leaves_a_group_without_variance_exactly_none():
    """Thirds, of which the step's mean is 0 but for rounding: else all flat groups would be computed."""
    uneven, flat, nothing = ReinforcePP().advantages_of_step([[1.0, -1.0, -1.0], [1.0] * 3, [0.1] * 2])
    # squares (16 + 4 + 4) / 9 over N - 1 = 7
    assert uneven == pytest.approx([a / math.sqrt(8 / 3 / 7) for a in (4 / 3, -2 / 3, -2 / 3)])
    assert flat == [0.0] * 3
    assert nothing == [0.0] * 2


def test_reinforce_pp_adds_epsilon_to_the_variance():
    # mean 0, variance 2e-8 / 1, epsilon 1e-8
    ((right, wrong),) = ReinforcePP().advantages_of_step([[1e-4, -1e-4]])
    assert (right, wrong) == pytest.approx((1 / math.sqrt(3), -1 / math.sqrt(3)))


@pytest.mark.parametrize("advantage", [grpo, dr_grpo])
def test_an_ungraded_rollout_is_refused(advantage):
    with pytest.raises(ValueError, match="finite"):
        advantage([1.0, math.nan])


@given(REWARDS)
def test_grpo_is_the_scaled_dr_grpo_and_sums_to_zero(rewards):
    centred, scaled = dr_grpo(rewards), grpo(rewards)
    assert sum(scaled) == pytest.approx(0.0, abs=1e-4)
    assert all((a > 0) == (b > 0) and (a < 0) == (b < 0) for a, b in zip(centred, scaled, strict=True))


def test_a_rollout_is_compared_with_the_mean_of_the_others():
    assert rloo([1.0, -1.0]) == [2.0, -2.0]
    assert rloo([1.0, 0.0, -1.0, -1.0]) == pytest.approx([5 / 3, 1 / 3, -1.0, -1.0])
    assert rloo([3.0]) == [0.0]
