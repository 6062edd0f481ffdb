"""Why rollouts were lost: what is told, and what is said of it in the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playing import LIMITS, call, play
from retcon.core.sample import history_ids
from retcon.engine.scripted import Reply
from retcon.purify.saar import Saar
from retcon.rollout.faults import CHARS, TOLD, Faults


def test_a_reason_is_told_once_and_without_what_names_the_rollout(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    assert (faults.first, faults.why) == ("", "")
    faults.add("t/0", "rollout t/0: a tool failed")
    for n in range(1, 4):
        faults.add(f"t/{n}", f"request t/{n}: the model\n does not answer")
    told = ["rollout t/0 is lost: a tool failed", "rollout t/1 is lost: the model does not answer"]
    assert [record.getMessage() for record in caplog.records] == told
    assert (faults.first, faults.why) == ("a tool failed", ", most often as the model does not answer")


def test_only_so_many_reasons_are_told_and_counted_and_long_ones_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    for n in range(TOLD + 2):
        faults.add(f"t/{n}", f"{n}" * 2 * CHARS)
    for _ in range(3):
        faults.add("t/9", f"{TOLD}" * CHARS)
    assert len(caplog.records) == TOLD
    assert faults.why == f", most often as {'0' * CHARS}"


def test_a_rollout_whose_tool_fails_on_its_own_account_says_which_it_is(caplog: pytest.LogCaptureFixture) -> None:
    ended = play([call("y")], {"y": ("no worker", "infrastructure", None)}).trajectory
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(f"rollout {ended.id} is lost: ")
    assert "no worker" in told


def test_a_rollout_that_ends_in_a_lookahead_says_why(caplog: pytest.LogCaptureFixture) -> None:
    ended = play([call("x"), call("y")], {"x": "error", "y": "infrastructure"}, repair=Saar()).trajectory
    assert ended.stop == "infrastructure"
    (told,) = (record.getMessage() for record in caplog.records)
    assert told == f"rollout {ended.id} is lost: a tool failed on its own account in a lookahead"


def test_a_fault_in_the_last_turn_is_no_end_of_the_turns_nor_of_the_room() -> None:
    """It would be graded, and the model blamed for it."""
    told = ("no worker" * 20, "infrastructure", None)
    whole = play([call("x"), call("y")], {"y": told})
    used = len(history_ids(whole.trajectory))
    for limits in (replace(LIMITS, max_turns=2), replace(LIMITS, max_tokens=used - 20)):
        ended = play([call("x"), call("y")], {"y": told}, limits=limits).trajectory
        assert (ended.stop, len(ended.turns), ended.reward) == ("infrastructure", 2, None)


@pytest.mark.parametrize("second", [call("y"), ConnectionError("gone")], ids=["tool", "engine"])
def test_nor_is_one_in_the_lookahead_of_the_last_turn(second: Reply) -> None:
    limits = replace(LIMITS, max_turns=1)
    ended = play([call("x"), second], {"x": "error", "y": "infrastructure"}, repair=Saar(), limits=limits).trajectory
    assert (ended.stop, len(ended.turns), ended.reward) == ("infrastructure", 1, None)
