from __future__ import annotations

import pytest

from retcon.core.errors import (
    LONGEST_NAME,
    CheckpointRefused,
    EngineError,
    RecipeError,
    RecordError,
    SessionLost,
    located,
    nearest,
    told_as,
)
from retcon.core.programs import error_line


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gama", " (did you mean 'gamma'?)"),
        ("gxma", " (did you mean 'gamma'?)"),  # alike by .67
        ("gqqa", ""),  # by .44
        ("", ""),
        ("BETA", " (did you mean 'beta'?)"),
    ],
)
def test_a_name_suggests_the_nearest_that_is_half_alike(name: str, hint: str) -> None:
    assert nearest(name, ["alpha", "gamma", "prefix", "beta"]) == hint


def test_a_name_that_is_half_alike_and_no_more_is_suggested() -> None:
    assert nearest("abxy", ["abcd"]) == " (did you mean 'abcd'?)"
    assert nearest("abxyz", ["abcd"]) == ""


def test_a_name_that_is_a_text_is_compared_with_nothing() -> None:
    longest = "x" * LONGEST_NAME
    assert nearest(longest, [longest + "y"]) == f" (did you mean '{longest}y'?)"
    assert nearest(longest + "x", [longest]) == ""


def test_where_an_error_is_stands_in_it_once() -> None:
    told = located(RecordError("bad"), "f.jsonl, line 3")
    assert str(told) == "f.jsonl, line 3: bad"
    assert located(told, "f.jsonl, line 3") is told


def test_an_error_whose_name_has_a_module_before_it_is_found_in_a_traceback() -> None:
    lines = ["Traceback:", "requests.exceptions.HTTPError: 404", "  more"]
    assert error_line(lines, "HTTPError") == lines[1]
    assert error_line(lines, "Error") is None
    assert error_line(["ValueError: a: b"], "ValueError") == "ValueError: a: b"


def test_a_lost_session_is_an_infrastructure_fault_unless_its_code_ended_it() -> None:
    assert not SessionLost("gone").by_own_code
    lost = SessionLost("its code ended it", by_own_code=True)
    assert lost.by_own_code
    assert str(lost) == "its code ended it"


def test_a_checkpoint_is_refused_for_want_of_room_only_where_that_is_reported() -> None:
    assert not CheckpointRefused("its state cannot be kept").full
    assert CheckpointRefused("too many", full=True).full


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(2)])
def test_an_exception_or_exit_of_custom_code_is_reported(error: BaseException) -> None:
    said = rf"^the tool raised {type(error).__name__}: .* \(.*test_errors\.py:\d+\)$"
    with pytest.raises(RecipeError, match=said), told_as(RecipeError, "the tool"):
        raise error


def test_an_error_of_retcons_in_it_stays_as_it_is() -> None:
    mine = EngineError("no server")
    with pytest.raises(EngineError) as told, told_as(RecipeError, "the tool"):
        raise mine
    assert told.value is mine
