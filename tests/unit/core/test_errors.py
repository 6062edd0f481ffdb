from __future__ import annotations

from retcon.core.errors import (
    LONGEST_NAME,
    CheckpointRefused,
    RecordError,
    SessionLost,
    as_record_error,
    nearest,
)


def test_a_name_that_is_half_alike_and_no_more_is_suggested() -> None:
    assert nearest("abxy", ["abcd"]) == " (did you mean 'abcd'?)"
    assert nearest("abxyz", ["abcd"]) == ""


def test_a_name_that_is_a_text_is_compared_with_nothing() -> None:
    longest = "x" * LONGEST_NAME
    assert nearest(longest, [longest + "y"]) == f" (did you mean '{longest}y'?)"
    assert nearest(longest + "x", [longest]) == ""


def test_where_an_error_is_stands_in_it_once() -> None:
    told = as_record_error(RecordError("bad"), "f.jsonl, line 3")
    assert str(told) == "f.jsonl, line 3: bad"
    assert as_record_error(told, "f.jsonl, line 3") is told


def test_a_lost_session_is_an_infrastructure_fault_unless_its_code_ended_it() -> None:
    assert not SessionLost("gone").by_own_code
    lost = SessionLost("its code ended it", by_own_code=True)
    assert lost.by_own_code
    assert str(lost) == "its code ended it"


def test_a_checkpoint_is_refused_for_want_of_room_only_where_that_is_reported() -> None:
    assert not CheckpointRefused("its state cannot be kept").full
    assert CheckpointRefused("too many", full=True).full
