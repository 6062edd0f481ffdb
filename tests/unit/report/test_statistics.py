"""pass@k against brute force, intervals against known values."""

import itertools
import statistics

import pytest

from retcon.evaluate import statistics as module
from retcon.evaluate.statistics import Interval, exactly, over_problems, over_seeds, pass_at_k, t_quantile


@pytest.mark.parametrize("samples", [1, 4, 6])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_pass(samples: int) -> None:
    for passed, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        rollouts = [index < passed for index in range(samples)]
        subsets = [any(subset) for subset in itertools.combinations(rollouts, k)]
        assert pass_at_k(samples, passed, k) == pytest.approx(statistics.fmean(subsets))


@pytest.mark.parametrize(("samples", "passed", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_pass_at_k_refuses_what_is_not_defined(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(samples, passed, k)


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (10, 2.2281), (12, 2.1788), (30, 2.0423)])
def test_t_quantiles(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


def test_interval_over_three_seeds_by_hand() -> None:
    # mean .8, standard deviation .1, so half = 4.3027 × .1 / √3 = .24842
    interval = over_seeds([0.7, 0.8, 0.9])
    assert interval.mean == pytest.approx(0.8)
    assert interval.low == pytest.approx(0.8 - 0.24842, abs=1e-5)
    assert interval.high == pytest.approx(0.8 + 0.24842, abs=1e-5)
    assert over_seeds([0.7, 0.8, 0.9], floor=0, ceiling=1).high == 1


def test_one_seed_has_no_t_interval() -> None:
    with pytest.raises(ValueError, match="two seeds"):
        over_seeds([0.5])


def test_bootstrap_is_seeded_and_close_to_the_normal_interval() -> None:
    values = [index / 99 for index in range(100)]
    interval = over_problems(values)
    assert interval == over_problems(values)
    assert interval != over_problems(values, seed=1)
    # σ of the mean of a uniform spread is 1 / √12 / √100 = .0292 (with the grid's ends): ± 1.96 σ = .0571
    assert interval.mean == pytest.approx(0.5)
    assert interval.low == pytest.approx(0.4429, abs=0.004)
    assert interval.high == pytest.approx(0.5571, abs=0.004)


def test_equal_problems_leave_no_doubt() -> None:
    assert over_problems([0.25] * 8) == exactly(0.25) == Interval(0.25, 0.25, 0.25)
    with pytest.raises(ValueError, match="one problem"):
        over_problems([])


def test_what_is_drawn_of_many_problems_part_by_part_is_what_is_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [n % 7 / 7 for n in range(90)]
    whole = over_problems(values, seed=3)
    monkeypatch.setattr(module, "DRAWN", 1000)
    assert over_problems(values, seed=3) == whole
