"""What a session would no longer have, once a failed call is gone that had left it there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foreign import FIXED, Step, fails, mint, user, works
from retcon.purify.offline import Offline
from retcon.transcripts.formats.mint import MINT

ROWS = works("rows = [1]", said="First")
FAILS = "root = math.sqroot(16)\nprint(root)"


def left(*steps: Step) -> list[tuple[int, str, str]]:
    """What is left alone of the failures, and why."""
    (trajectory,) = MINT.read(mint([user("?"), *steps]), "t").trajectories
    return [(one.turn, one.reason, one.detail) for one in Offline()(trajectory).left]


@pytest.mark.parametrize("change", ["rows.append(2)", "rows[0] = 2", "rows += [2]", "del rows[0]"])
def test_what_a_failed_call_changed_in_place_is_needed_where_it_is_read_again(change: str) -> None:
    failed = fails(f"import math\n{change}\n{FAILS}", "AttributeError", 3)
    assert left(ROWS, failed, works(FIXED), works("print(rows)", "[2]")) == [(1, "state", "rows")]
    assert left(ROWS, failed, works(FIXED), works("rows = [3]\nprint(rows)", "[3]")) == []
    assert left(ROWS, failed, works(FIXED), works("print(1)")) == []


def test_an_import_of_a_call_that_failed_is_none_that_stands_earlier() -> None:
    failed, fix = fails("import math\nroot = math.sqroot(16)", "AttributeError", 2), works("root = math.sqrt(16)")
    assert left(works("import math"), failed, fix) == []
    assert left(fails("stop()\nimport math"), user("?"), failed, fix) == [(0, "user", ""), (1, "state", "math")]


def test_a_later_call_that_fails_has_bound_what_stands_before_its_failing_line() -> None:
    failed = fails(f"import math\nside = 16\n{FAILS}", "AttributeError", 3)
    shown = works("print(side)", "16")
    for code, line, stays in (("stop()\nside = 3", 1, 2), ("side = 3\nstop()", 2, 1)):
        later = fails(code, "NameError", line, "And then")
        assert len(left(failed, works(FIXED), later, user("?"), shown)) == stays


@pytest.mark.parametrize(
    ("code", "line", "stays"),
    [
        ("for n in [0]:\n    side = 1 / n", 2, True),
        ("for n in [0]:\n    stop(n)\n    side = 3", 2, True),
        ("for n in [0]:\n    side = sum([\n        1 / n])", 3, True),
        ("for n in [0]:\n    side = 3\n    stop(n)", 3, False),
        ("try:\n    side = 3\nfinally:\n    stop()", 4, False),
    ],
)
def test_within_a_statement_that_fails_only_what_ends_before_its_line_is_bound(
    code: str, line: int, stays: bool
) -> None:
    failed = fails(f"import math\nside = 16\n{FAILS}", "AttributeError", 3)
    later = (fails(code, "NameError", line, "And then"), user("?"), works("print(side)", "16"))
    assert ((0, "state", "side") in left(failed, works(FIXED), *later)) == stays


def test_a_later_call_that_fails_nobody_knows_where_has_surely_bound_nothing() -> None:
    failed = fails(f"import math\nside = 16\n{FAILS}", "AttributeError", 3)
    later = replace(works("side = long()\nstop()", said="And then"), output="TimeoutError: it took too long")
    assert (0, "state", "side") in left(failed, works(FIXED), later, user("?"), works("print(side)", "16"))
    assert left(failed, works(FIXED), later, user("?"), works("side = 1\nprint(side)", "1")) == [(2, "user", "")]


def test_what_an_attempt_between_the_failure_and_its_fix_has_left_there_is_needed_too() -> None:
    first = fails(f"import math\n{FAILS}", "AttributeError", 2)
    between = fails(f"import math\nside = 16\n{FAILS}", "AttributeError", 3)
    assert left(first, between, works(FIXED), works("print(side)", "16")) == [
        (0, "state", "side"),
        (1, "state", "side"),
    ]
    assert left(first, between, works(FIXED), works("print(1)")) == []
