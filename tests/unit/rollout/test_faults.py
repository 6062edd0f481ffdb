"""Why rollouts were lost: what is told, and what is said of it in the end."""

from __future__ import annotations

import pytest

from playing import call, play
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
