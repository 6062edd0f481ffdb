"""First tries, counted by hand in rollouts with and without repairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comparing import FAILED, FIX, answer, repaired, trajectory
from retcon.core.types import Branch, FirstTries, Observation, RepairRecord, Segment, ToolCall, Turn, count_first_tries


def test_what_follows_a_failure_is_a_repair_and_no_first_try() -> None:
    assert count_first_tries(trajectory("t/0", FIX, FAILED, FAILED, FIX, FIX, answer("9"))) == FirstTries(
        made=3, failed=1
    )


def test_it_is_the_same_figure_whether_the_failure_was_purified_or_not() -> None:
    raw = trajectory("t/0", FAILED, FIX, answer("9"))
    assert count_first_tries(repaired()) == count_first_tries(raw) == FirstTries(made=1, failed=1)


def test_after_a_turn_that_no_lookahead_repaired_the_next_is_no_first_try() -> None:
    unrepaired = replace(FAILED, abandoned=(FAILED,), repair=RepairRecord("unrepaired", attempts=1))
    assert count_first_tries(trajectory("t/0", unrepaired, FIX, FIX)) == FirstTries(made=2, failed=1)


def test_the_beginning_that_a_branch_shares_was_tried_by_the_other() -> None:
    """It still tells whether what comes next answers a failure."""
    turns = (FIX, FAILED, FIX, FAILED)
    tries = [
        count_first_tries(replace(trajectory("t/1", *turns), branch=Branch("t/0", "t/0", shared, 50, 1.0, 0.5)))
        for shared in (1, 2, 3)
    ]
    assert count_first_tries(trajectory("t/0", *turns)) == FirstTries(made=3, failed=2)
    assert tries == [FirstTries(made=2, failed=2), FirstTries(made=1, failed=1), FirstTries(made=1, failed=1)]


@pytest.mark.parametrize(("made", "failed", "rate"), [(4, 1, 0.25), (0, 0, None)])
def test_a_rate_needs_tries(made: int, failed: int, rate: float | None) -> None:
    assert FirstTries(made, failed).rate == rate
    assert count_first_tries(trajectory("t/0", answer("9"))) == FirstTries(0, 0)


CUT = Turn((Segment("sampled", "x" * 9),), stop="length")
NOTHING = Turn((Segment("sampled", "pass"),), (ToolCall("0.2.0", "python", {"code": "pass"}, 0),),
               (Observation("0.2.0", "", "ok"),), "call")  # fmt: skip


@pytest.mark.parametrize("between", [CUT, answer("9")], ids=["cut off", "an answer that is not committed"])
def test_an_attempt_after_one_without_a_call_is_still_a_repair(between: Turn) -> None:
    fixed = replace(FIX, abandoned=(FAILED, between, FAILED, FIX), repair=RepairRecord("shallow", attempts=3))
    assert count_first_tries(trajectory("t/0", fixed, FIX)) == FirstTries(made=2, failed=1)


@pytest.mark.parametrize("last", [CUT, NOTHING], ids=["cut off", "a call that does nothing"])
def test_after_an_unrepaired_turn_the_next_is_no_first_try_however_its_lookahead_ended(last: Turn) -> None:
    unrepaired = replace(FAILED, abandoned=(FAILED, last), repair=RepairRecord("unrepaired", attempts=2))
    assert count_first_tries(trajectory("t/0", unrepaired, FIX, FIX)) == FirstTries(made=2, failed=1)
