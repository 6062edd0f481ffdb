"""Intervals over seeds and problems, on data whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from retcon.evaluate.statistics import Interval, over_problems, over_runs, over_seeds, paired


def drawn(draws: np.random.Generator, shape: tuple[int, int], *, seeds: float, problems: float) -> np.ndarray:
    """Values of mean .5: a shift for each seed, one for each problem, and noise of .1."""
    count, tasks = shape
    shifts = draws.normal(0, seeds, (count, 1)) + draws.normal(0, problems, (1, tasks))
    return 0.5 + shifts + draws.normal(0, 0.1, shape)


def test_seeds_alone_would_deceive_and_so_would_problems_alone() -> None:
    """Both kinds of chance widen the interval: it is wider than that of the seeds' means, and of the problems'."""
    values = drawn(np.random.default_rng(0), (5, 40), seeds=0.05, problems=0.3)
    both = over_runs(values)
    same_problems = over_runs(np.tile(values.mean(1, keepdims=True), (1, 40)))
    same_seeds = over_runs(np.tile(values.mean(0, keepdims=True), (5, 1)))
    assert both.high - both.low > max(same_problems.high - same_problems.low, same_seeds.high - same_seeds.low)


def test_of_pairs_what_both_share_falls_out() -> None:
    """A difference of .02 in arms whose seeds and problems vary by far more."""
    draws = np.random.default_rng(1)
    theirs = drawn(draws, (5, 60), seeds=0.2, problems=0.3)
    found = paired(theirs + 0.02 + draws.normal(0, 0.01, theirs.shape), theirs)
    assert 0 < found.difference.low < 0.02 < found.difference.high < 0.05
    assert found.by_seed == pytest.approx((0.02,) * 5, abs=0.01)
    assert found.better > 50
    assert found.better + found.worse == 60
    alone = over_runs(theirs)
    assert alone.high - alone.low > 0.1


def test_the_sign_of_a_difference_is_ours_less_theirs() -> None:
    found = paired(np.array([[1.0, 0.5, 0.0]]), np.array([[0.0, 0.5, 0.5]]))
    assert found.difference.mean == pytest.approx(0.5 / 3)
    assert (found.better, found.worse) == (1, 1)
    assert found.by_seed == pytest.approx((0.5 / 3,))


def test_a_problem_that_both_solve_as_often_is_neither_better_nor_worse() -> None:
    """Of five rollouts in each of three seeds eight pass, in two orders: the differences do not quite add up to 0."""
    ours, theirs = (np.array([passed]).T / 5 for passed in ([1, 4, 3], [4, 3, 1]))
    assert (ours - theirs).mean(axis=0) != 0
    found = paired(ours, theirs)
    assert (found.better, found.worse) == (0, 0)


def test_one_seed_is_a_bootstrap_over_problems_and_equal_values_leave_no_doubt() -> None:
    values = [0.1, 0.4, 0.9, 0.2]
    assert over_runs(np.array([values])) == over_problems(values)
    assert over_runs(np.full((3, 4), 0.25)) == Interval(0.25, 0.25, 0.25)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_where_but_one_of_both_varies_it_is_students_t_of_that_one(count: int) -> None:
    """But for what 2,000 resamples leave to chance; a plain bootstrap of two would be narrower by √2."""
    values = np.arange(count, dtype=float) ** 2
    wanted = over_seeds(values.tolist())
    for found in (over_runs(np.tile(values[:, None], (1, 4))), over_runs(np.tile(values, (3, 1)))):
        assert found.mean == wanted.mean
        assert found.high - found.mean == pytest.approx(wanted.high - wanted.mean, rel=0.06)


def test_it_is_seeded_and_cut_to_what_the_figure_can_be() -> None:
    values = np.array([[1.0, 1.0, 0.2], [1.0, 0.9, 1.0]])
    assert over_runs(values) == over_runs(values)
    assert over_runs(values, floor=0.0, ceiling=1.0).high == 1.0
    assert over_runs(values).high > 1.0
    far = paired(np.array([[1.0, 1.0], [1.0, 0.0]]), np.zeros((2, 2)), most=1.0).difference
    assert (far.low, far.high) == (-1.0, 1.0)


@pytest.mark.parametrize("values", [np.empty((0, 3)), np.empty((2, 0)), np.array([1.0]), np.array([[np.nan, 1.0]])])
def test_values_that_say_nothing_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="finite values"):
        over_runs(values)
    with pytest.raises(ValueError, match="cannot be paired"):
        paired(np.zeros((2, 3)), np.zeros((3, 2)))
