"""What a session would no longer have, once a failed call is gone that had left it there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foreign import FIXED, Step, fails, mint, user, works
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn
from retcon.purify.offline import Repairer
from retcon.transcripts.formats.notations import MINT

ROWS = works("rows = [1]", said="First")
FAILS = "root = math.sqroot(16)\nprint(root)"


def left(*steps: Step) -> list[tuple[int, str, str]]:
    """What is left alone of the failures, and why."""
    (trajectory,) = MINT.read(mint([user("?"), *steps]), "t").trajectories
    return [(one.turn, one.reason, one.detail) for one in Repairer()(trajectory).left]


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


@pytest.mark.parametrize(
    ("left_there", "fix", "later", "reason", "detail"),
    [
        ("side = 16", FIXED, "print(side)", "state", "side"),
        ("import math", "root = math.sqrt(16)", "print(1)", "state", "math"),
        ("open('f', 'w').write('a')", FIXED, "print(1)", "effects", "open('f', 'w')"),
        ("from math import *", "root = sqrt(16)", "print(1)", "state", "sqrt, of `from math import *`"),
    ],
)
def test_what_the_first_of_two_attempts_alone_has_left_there_is_needed_too(
    left_there: str, fix: str, later: str, reason: str, detail: str
) -> None:
    failed = fix.replace("sqrt", "sqroot")
    first, second = fails(f"{left_there}\n{failed}", "AttributeError", 5), fails(failed, "AttributeError", 2)
    assert left(first, second, works(fix), works(later)) == [(0, reason, detail)]


def test_names_that_were_bound_and_names_that_were_imported_are_missed_together() -> None:
    failed, fix = "root = math.sqroot(side)\nprint(root)", "root = math.sqrt(side)\nprint(root)"
    assert left(fails(f"import math\nside = 16\n{failed}", "AttributeError", 3), works(fix)) == [
        (0, "state", "math, side")
    ]


def test_a_fix_may_write_a_file_that_the_failed_call_did_not() -> None:
    failed = fails(FAILS, "AttributeError", 1)
    assert left(failed, works(f"{FIXED}\nopen('f', 'w').write('a')")) == []


def turn(status: str, *codes: str | None) -> Turn:
    """A turn of programs, of which the last ends so; None: a call of the same tool without a program."""
    calls = tuple(
        ToolCall(str(n), "python", {"files": "a"} if code is None else {"code": code}, 0)
        for n, code in enumerate(codes)
    )
    statuses = ["ok"] * (len(codes) - 1) + [status]
    seen = tuple(Observation(call.id, "", one) for call, one in zip(calls, statuses, strict=True))
    return Turn((Segment("sampled", "x"),), calls, seen, "call")


@pytest.mark.parametrize(
    ("failed", "fix", "missed"),
    [
        ((None, "side = 16\nroot = sqroot(16)"), (None, "root = sqrt(16)\nprint(side)"), ["side"]),
        (("side = 16\nroot = sqroot(16)",), ("print(side)", "root = sqrt(16)"), ["side"]),
        (("side = 16\nroot = sqroot(16)",), ("side = 2 * 8", "root = sqrt(16)\nprint(side)"), []),
    ],
)
def test_all_calls_of_a_turn_are_read(failed: tuple[str | None, ...], fix: tuple[str, ...], missed: list[str]) -> None:
    result = Repairer()(Trajectory("t", "k", (), (turn("error", *failed), turn("ok", *fix))))
    assert [(one.reason, one.detail) for one in result.left] == [("state", detail) for detail in missed]


def test_of_all_names_of_a_module_those_are_not_missed_that_a_call_of_the_fix_binds() -> None:
    failed, later = turn("error", "from math import *\nroot = sqroot(16)"), turn("ok", "print(floor(2.5), ceil(2.5))")
    for first, missed in (
        ("floor, ceil = divmod(7, 2)", []),
        ("ceil = divmod(7, 2)", ["floor, of `from math import *`"]),
        ("floor = divmod(7, 2)", ["ceil, of `from math import *`"]),
    ):
        result = Repairer()(Trajectory("t", "k", (), (failed, turn("ok", first, "root = 16 ** 0.5"), later)))
        assert [one.detail for one in result.left] == missed


FLOOR = "floor, of `from math import *`"


def test_what_a_program_that_failed_binds_after_its_line_gives_no_name_of_a_module() -> None:
    failed, shown = fails("from math import *\nroot = sqroot(16)", "NameError", 2), works("print(floor(2.5))", "2")
    unbound = fails("stop()\nfloor = int", "NameError", 1, "And then")
    before = (unbound, user("?"), failed, works("root = 16 ** 0.5"), shown)
    assert left(*before) == [(0, "user", ""), (1, "state", FLOOR)]
    after = (failed, works("root = 16 ** 0.5"), unbound, user("?"), shown)
    assert left(*after) == [(0, "state", FLOOR), (2, "user", "")]


def test_a_name_that_a_turn_before_has_bound_is_not_one_of_a_module() -> None:
    failed, shown = fails("from math import *\nroot = sqroot(16)", "NameError", 2), works("print(floor(2.5))", "2")
    before = works("def floor(n):\n    return n // 1", said="First")
    for fix in ("root = 16 ** 0.5", "root = floor(4.5)"):
        assert left(before, failed, works(fix), shown) == []


def test_of_a_later_turn_without_all_its_results_the_programs_that_were_run_are_read() -> None:
    later = replace(turn("ok", "print(side)", "print(1)"), observations=(Observation("0", "16", "ok"),))
    failed, fix = turn("error", "side = 16\nroot = sqroot(16)"), turn("ok", "root = sqrt(16)")
    result = Repairer()(Trajectory("t", "k", (), (failed, fix, later)))
    assert [(one.reason, one.detail) for one in result.left] == [("state", "side")]


def test_what_a_shell_s_command_has_left_there_nobody_knows() -> None:
    failed, fix = turn("error", "make al"), turn("ok", "make all")
    shell = [replace(one, calls=(replace(one.calls[0], language="shell"),)) for one in (failed, fix)]
    result = Repairer()(Trajectory("t", "k", (), tuple(shell)))
    assert [(one.reason, one.detail) for one in result.left] == [("effects", "a shell command")]


@pytest.mark.parametrize("spaced", ["import *", "import*", "import  *", "import\t*", "import \\\n    *"])
def test_an_import_of_all_names_is_one_however_it_is_spaced(spaced: str) -> None:
    failed = fails(f"from math {spaced}\nroot = sqroot(16)", "NameError", 1 + len(spaced.splitlines()))
    told = (failed, works("root = 16 ** 0.5"), works("print(floor(2.5))", "2"))
    assert left(*told) == [(0, "state", FLOOR)]
