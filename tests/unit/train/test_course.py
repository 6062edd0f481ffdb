"""When a run is over before its steps are, and when first tries have got worse."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from retcon.core.errors import DriftWarning, IdleWarning
from retcon.train.algorithms.dapo import Dapo
from retcon.train.algorithms.reinforce_pp import ReinforcePP
from retcon.train.watch import FAILURES, SIGMAS, WINDOW, Course, Drift, drift

TRIES = 50


def steps(*rates: float) -> list[dict[str, float | None]]:
    """WINDOW steps of each first-try failure rate."""
    return [{"first_tries": TRIES, "first_try_failures": TRIES * rate} for rate in rates for _ in range(WINDOW)]


def test_the_last_window_is_compared_with_the_best_before() -> None:
    found = drift(steps(0.5, 0.2, 0.3))
    assert found is not None
    assert (found.best, found.now) == (pytest.approx(0.2), pytest.approx(0.3))
    # of 500 and 500 tries, a quarter of which fail: .1 / √(.25 × .75 × 2 / 500)
    assert found.sigmas == pytest.approx(3.6515, abs=1e-3)
    assert found.rise == pytest.approx(0.1)


def test_windows_that_overlap_are_not_compared() -> None:
    assert drift(steps(0.2)[:-1] + steps(0.4)) is None
    assert drift(steps(0.2, 0.4)) is not None
    assert drift(steps(0.0, 0.0)) == Drift(0.0, 0.0, 0.0), "no chance at all, and no division by it"


def window_by_window(lines: Sequence[Mapping[str, float | None]]) -> tuple[float, float, float] | None:
    """Best, now and sigmas, the last as the root of Pearson's χ² of the two windows' table."""

    def window(start: int) -> tuple[int, int]:
        part = lines[start : start + WINDOW]
        tries, failures = (sum(int(line.get(name) or 0) for line in part) for name in ("first_tries", FAILURES))
        return tries, failures

    known = [one for start in range(len(lines) - 2 * WINDOW + 1) if (one := window(start))[0]]
    if not known:
        return None
    tries, failed = min(known, key=lambda one: (one[1] / one[0], one[0]))
    last, now = window(len(lines) - WINDOW)
    if not last:
        return None
    worked = tries + last - failed - now
    table = tries * last * (failed + now) * worked
    chi = (now * (tries - failed) - failed * (last - now)) * math.sqrt((tries + last) / table) if table else 0.0
    return failed / tries, now / last, chi


def test_each_window_counts_by_its_own_tries() -> None:
    """Steps have many tries, few or none, and some lack the figures."""
    draw, found = random.Random(0), 0
    for _ in range(300):
        lines: list[dict[str, float | None]] = []
        for _ in range(draw.randrange(4 * WINDOW)):
            tries = draw.choice((0, 0, 1, 3, 40))
            line: dict[str, float | None] = {"first_tries": tries, FAILURES: draw.randint(0, tries)}
            lines.append(draw.choice((line, line, {"first_tries": None, FAILURES: None}, {})))
        given, wanted = drift(lines), window_by_window(lines)
        assert (given is None) == (wanted is None)
        if given is not None:
            assert (given.best, given.now, given.sigmas) == pytest.approx(wanted)
            found += 1
    assert found > 100


def test_a_rise_must_be_large_and_beyond_chance() -> None:
    large = drift(steps(0.2, 0.4))
    assert large is not None
    assert large.alarming(0.05)
    assert not large.alarming(0.25)
    assert not large.alarming(0.0)  # off
    few = drift([{"first_tries": 1, "first_try_failures": 0.6 * (n >= WINDOW)} for n in range(2 * WINDOW)])
    assert few is not None
    assert few.rise == pytest.approx(0.6)
    assert not few.alarming(0.05)  # 6 of 10 after none: 2.9 standard errors
    assert Drift(0.25, 0.5, SIGMAS).alarming(0.25), "both bounds belong to it"


def test_steps_without_tries_say_nothing() -> None:
    assert drift([{}] * (2 * WINDOW)) is None
    assert drift([*steps(0.2), *([{"first_tries": 0, "first_try_failures": 0}] * WINDOW)]) is None


def test_the_alarm_is_told_once_and_stays_in_the_metrics() -> None:
    course, alarms = Course(Dapo(), []), []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for line in steps(0.1, 0.5, 0.5):
            found = course.drift_after(line)
            alarms.append(found["first_try_alarm"])
            course.add({**line, **found})
    assert [w.category for w in told] == [DriftWarning]
    assert "first tries failed in the last 10 steps, after 10.0% at best" in str(told[0].message)
    assert str(told[0].message).startswith(f"step {alarms.index(1) + 1}: ")
    assert sum(alarms) > WINDOW
    assert alarms == sorted(alarms)
    assert found["first_try_drift"] == pytest.approx(0.4)


def test_a_run_that_goes_on_reckons_with_what_earlier_sessions_saw() -> None:
    lines = steps(0.1, 0.5)
    whole = Course(Dapo(), [])
    for line in lines[:-1]:
        whole.add(line)
    with pytest.warns(DriftWarning):
        assert Course(Dapo(), lines[:-1]).drift_after(lines[-1]) == whole.drift_after(lines[-1])


@pytest.mark.parametrize(("passed", "hint"), [(0.01, True), (0.99, False)])
def test_a_run_whose_groups_teach_nothing_says_so_when_that_begins(passed: float, hint: bool) -> None:
    course, told = Course(Dapo(), []), []
    for same in [1.0] * (WINDOW - 1) + [0.6] + [1.0] * 2 * WINDOW + [0.0] + [1.0] * WINDOW:
        line: dict[str, float | None] = {"same_reward": same, "pass_rate": passed}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            course.tell_idling(line)
        course.add(line)
        told += [str(w.message) for w in caught if w.category is IdleWarning]
    first, again = told  # .6 among ten is .96; then one of ten that teaches is .9
    assert first.startswith(f"step {WINDOW}: in 96% of the groups of the last {WINDOW} steps")
    assert again.startswith(f"step {4 * WINDOW + 1}: in 100%")
    advice = " A cold start may have to come first: docs/data/demonstrations.md." if hint else ""
    assert first.endswith(f"trains on those (docs/training/selection.md).{advice}")
    assert f"({passed:.1%} of them pass)" in first


def test_other_tasks_and_groups_of_one_are_no_idling() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", IdleWarning)
        course = Course(Dapo(), [{"same_reward": 1.0}] * (WINDOW - 1))
        course.data_since(5)
        course.tell_idling({"same_reward": 1.0})
        alone = Course(Dapo(), [{"same_reward": None}] * (WINDOW - 1))
        alone.tell_idling({"same_reward": None})


def test_where_groups_are_compared_with_each_other_there_is_no_idling() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", IdleWarning)
        course = Course(ReinforcePP(baseline="none"), [{"same_reward": 1.0, "pass_rate": 0.5}] * (WINDOW - 1))
        course.tell_idling({"same_reward": 1.0, "pass_rate": 0.5})
    alone, across = ReinforcePP(), ReinforcePP(baseline="none")
    for section, passed in ((alone, 0.5), (across, 0.0), (across, 1.0)):
        course = Course(section, [{"same_reward": 1.0, "pass_rate": passed}] * (WINDOW - 1))
        with pytest.warns(IdleWarning):
            course.tell_idling({"same_reward": 1.0, "pass_rate": passed})


def test_nineteen_groups_in_twenty_without_an_advantage_are_enough_to_say_so() -> None:
    """And where half of the rollouts pass it is no cold start that is lacking."""
    course = Course(Dapo(), [{"same_reward": 1.0, "pass_rate": 0.5}] * (WINDOW - 1))
    with pytest.warns(IdleWarning, match="in 95% of the groups") as told:
        course.tell_idling({"same_reward": 0.5, "pass_rate": 0.5})
    assert "cold start" not in str(told[0].message)


@pytest.mark.parametrize(
    ("sampled", "cpu_s", "ends"), [(0, 9.9, False), (None, 9.9, False), (1, 0.0, True), (0, 10.0, True)]
)
def test_whether_a_run_ends_with_a_step_is_known_before_its_line(sampled: int | None, cpu_s: float, ends: bool) -> None:
    """By what the steps before have sampled, and lines without that figure say nothing."""
    section = Dapo(max_sampled_tokens=100, max_cpu_seconds=10)
    course = Course(section, [{"sampled_tokens": 90}, {}])
    course.add({"sampled_tokens": 9})
    course.add({})
    assert course.ends_with({} if sampled is None else {"sampled_tokens": sampled}, cpu_s) == ends
    assert not course.over
    assert not any(Course(Dapo(max_cpu_seconds=0.5), lines).over for lines in ([], [{}]))


def test_a_run_ends_after_the_step_in_which_its_tokens_are_spent() -> None:
    course = Course(Dapo(max_sampled_tokens=100), [{"sampled_tokens": 60}])
    assert not course.over
    course.add({"sampled_tokens": 40})
    assert course.over
    assert Course(Dapo(max_sampled_tokens=100), [{"sampled_tokens": 60}, {"sampled_tokens": 41}]).over
    assert not Course(Dapo(), [{"sampled_tokens": 1e9, "cpu_s": 1e9}]).over


def test_a_run_ends_after_the_step_in_which_its_seconds_are_spent() -> None:
    section = Dapo(max_cpu_seconds=10)
    assert not Course(section, []).over
    assert not Course(section, [{"cpu_s": 6.0}, {"cpu_s": 9.9}]).over
    assert Course(section, [{"cpu_s": 6.0}, {"cpu_s": 10.0}]).over


def test_where_nothing_drifts_there_is_hardly_an_alarm() -> None:
    """200 runs of 200 steps with 100 first tries each, 30 % of which fail, whatever the step."""
    failures = np.random.default_rng(0).binomial(100, 0.3, (200, 200))
    alarms = 0
    for run in failures.tolist():
        lines = [{"first_tries": 100.0, "first_try_failures": float(count)} for count in run]
        seen = [drift(lines[:step]) for step in range(2 * WINDOW, len(lines) + 1, 5)]
        alarms += any(found is not None and found.alarming(0.05) for found in seen)
    assert alarms <= 1
