"""Which calls that work are no fix of the failed one, by their programs alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from retcon.core.types import Observation, Segment, Status, ToolCall, Turn
from retcon.purify.failing import run_starts
from retcon.purify.fixes import find_change, find_evasion, find_lost_plan, keeps_plan, line_of, misses_goal, shares_goal

MISSING = "NameError: name 'x' is not defined"


@dataclass(frozen=True)
class Ran:
    """A program and what came of it. error: the type of what it raised, at `line`."""

    code: str
    output: str = "1"
    error: str | None = None
    line: int | None = None


def turn(*programs: Ran, said: str = "") -> Turn:
    calls, observations, text = [], [], said
    for n, ran in enumerate(programs):
        calls.append(ToolCall(str(n), "python", {"code": ran.code}, len(text)))
        status = "ok" if ran.error is None else "error"
        observations.append(Observation(str(n), ran.output, status, ran.error, line=ran.line))
        text += ran.code
    return Turn((Segment("sampled", text),), tuple(calls), tuple(observations), "call")


def judged(failed: Ran, fix: Ran) -> tuple[str, str] | None:
    return find_evasion(turn(failed), turn(fix), lambda number: False)


def ranges(before: str, after: str, error: str = "TimeoutError") -> tuple[str, str] | None:
    program = "total = sum(k for k in {})"
    return judged(Ran(program.format(before), "", error, 1), Ran(program.format(after)))


def test_a_range_is_narrower_below_half_of_its_length() -> None:
    for before, half, less in (
        ("range(100)", "range(50)", "range(49)"),
        ("range(1, 102)", "range(51)", "range(50)"),
        ("range(1, 102)", "range(0, 51)", "range(0, 50)"),
        ("range(-100, 0)", "range(1, 51)", "range(1, 50)"),
        ("range(0, 100, 1)", "range(0, 50, 1)", "range(0, 49, 1)"),
        ("range(1000 ** 1)", "range(500)", "range(499)"),
    ):
        assert ranges(before, half) is None
        assert ranges(before, less) == ("avoided", less)
    assert ranges("range((-100) ** 0.5)", "range(1)", "TypeError") is None, "it has no length"


@pytest.mark.parametrize("error", ["NameError", "ModuleNotFoundError", "SyntaxError"])
def test_a_range_has_no_part_in_a_name_that_was_missing(error: str) -> None:
    assert ranges("range(100)", "range(10)", error) is None


@pytest.mark.parametrize("bound", [
    "n + 1", "1 + n", "-n", "9" * 400, f"1{'0' * 30}", "2 ** 31", "1 ** 31", "1001 ** 1", "2 ** -1", "7 % 2",
])  # fmt: skip
def test_a_range_whose_length_numbers_do_not_give_says_nothing(bound: str) -> None:
    assert ranges(f"range({bound})", "range(1)") is None
    assert ranges("range(100)", f"range({bound})") is None


def test_a_program_that_cannot_be_read_is_judged_by_what_it_gave() -> None:
    broken = Ran("print(sum(range(3))", "", "SyntaxError", 1)
    assert judged(broken, Ran("print(sum(range(3)))", "3")) is None


SOLVER = Ran("days = solve(60*x - 660, x)[0]\nrest = 20 - days\nrest", "", "ValueError", 1)


@pytest.mark.parametrize("end", ["rest", "print(rest)", "print(round(rest))", "print(int(rest))", "print(float(rest))"])
@pytest.mark.parametrize("solver", ["solve", "sympy.solve"])
def test_what_a_solver_was_for_cannot_come_from_nowhere(solver: str, end: str) -> None:
    failed = Ran(SOLVER.code.replace("solve", solver), "", "ValueError", 1)
    assert judged(failed, Ran(f"days = 1260 / 90\nrest = 20 - days\n{end}", "6")) == ("constant", "1260 / 90")


def test_what_a_loop_or_another_function_works_out_is_no_arithmetic_by_hand() -> None:
    looped = "days = 1260 / 90\nfor n in [1, 2]:\n    rest = 20 - n * days\nrest"
    assert judged(SOLVER, Ran(looped, "6")) is None
    assert judged(SOLVER, Ran("days = 1260 / 90\nrest = max(20 - days, 0)\nrest", "6")) is None
    assert judged(SOLVER, Ran("days = 1260 / 90\nrest = rule(20)(days)\nrest", "6")) is None


def test_arithmetic_by_hand_is_found_among_other_statements() -> None:
    assert judged(SOLVER, Ran("import math  # so\nall = 20\ndays = 1260 / 90\nrest = all - days\nrest", "6")) == (
        "constant",
        "1260 / 90",
    )
    derived = "import math\nall = 20\n# 1260 /\n# 90\ndays = 1260 / 90\nrest = all - days\nrest"
    assert judged(SOLVER, Ran(derived, "6")) is None


def test_a_missing_name_that_is_bound_to_none_is_made_up() -> None:
    failed = Ran("rows = [2 * x, 3]\nprint(rows)", MISSING, "NameError", 1)
    assert judged(failed, Ran("x = None\nrows = [2, x, 3]\nprint(rows)", "[2, None, 3]")) == ("avoided", "x = None")
    assert judged(failed, Ran("x = y\nrows = [2 * x, 3]\nprint(rows)", "[2, 3]")) is None


@pytest.mark.parametrize(
    ("bound", "made_up"),
    [
        ("import math\nx = 7", "x = 7"), ("y = 8\nx = 7", "x = 7"), ("y, x = 8, 7", "x = 7"), ("x = 9", None),
        ("x = 9\nx = load()", "x = 9"), ("y = 8\nx = load()", None), ("x = 7\nfor n in rows:\n    x += n", None),
    ],
)  # fmt: skip
def test_a_number_that_a_missing_name_is_bound_to_was_told_or_is_made_up(bound: str, made_up: str | None) -> None:
    failed, fix = (turn(Ran(f"{code}\nlast = x * f(2)\nprint(last)", out, error, line)) for code, out, error, line in (
        ("rows = load()", MISSING, "NameError", 2), (bound, "14", None, None),
    ))  # fmt: skip
    assert find_evasion(failed, fix, lambda number: number == "9") == (made_up and ("avoided", made_up))


def test_no_result_is_none_unless_no_more_than_imports_changed() -> None:
    program = "found = solve(x + 1, x)\nprint(found)"
    failed = Ran(program, "NameError: name 'solve' is not defined", "NameError", 1)
    assert judged(failed, Ran(f"from sympy import solve\n{program}", "[]")) is None
    assert judged(failed, Ran("found = solve(y + 1, y)\nprint(found)", "[]")) == ("avoided", "the result is []")


def test_another_text_is_no_way_round_where_no_branch_is_new() -> None:
    assert judged(Ran("print('all ' + 1)", "", "TypeError", 1), Ran("print('all 1')", "all 1")) is None


def test_all_lines_of_an_output_are_texts_of_a_new_branch() -> None:
    failed = Ran("print(found[0])", "", "IndexError", 1)
    guarded = "if found:\n    print(found[0])\nelse:\n    print('nothing')\n    print('found')"
    assert judged(failed, Ran(guarded, "nothing\nfound\n")) == ("avoided", "nothing")
    assert judged(failed, Ran(guarded, "nothing\n3\n")) is None


def test_a_name_of_three_letters_is_one_that_the_fix_has_instead() -> None:
    failed = Ran("total = rows[0]\nprint(total)", "", "IndexError", 1)
    assert judged(failed, Ran("abc = rows[1]\nprint(abc)")) == ("avoided", "total is left out")
    assert judged(failed, Ran("ab = rows[1]\nprint(ab)")) is None
    assert judged(failed, Ran("total_of_all = rows[1]\nprint(total_of_all)")) is None
    assert judged(Ran(failed.code, "", "IndexError"), Ran("abc = rows[1]\nprint(abc)")) is None, "who knows where"
    assert judged(failed, Ran("abc = rows[1]\nabc?")) is None, "who knows what it is"


def test_a_call_that_worked_beside_the_failed_one_is_no_end_of_it() -> None:
    worked, failed = Ran("first = load()"), Ran("second = first.rows()", "", "AttributeError", 1)
    assert not shares_goal(turn(worked, failed), turn(Ran("first = load()")))
    assert shares_goal(turn(worked, failed), turn(Ran("second = first.row()")))
    assert misses_goal(turn(worked, failed), turn(Ran("other = first.row()"))) == "second"


def test_what_the_failing_line_was_for_is_an_end_too() -> None:
    failed = turn(Ran("half = whole(1)\nrest = 3", "", "NameError", 1))
    assert shares_goal(failed, turn(Ran("half = 2 / 4\nother = 1")))
    later = turn(Ran("half = whole(1)\nrest = f(3)", "", "NameError", 2))
    assert not shares_goal(later, turn(Ran("half = 2 / 4\nother = 1")))


def test_an_expression_that_failed_is_worked_out_wherever_the_fix_has_it() -> None:
    failed = turn(Ran("area(3)\nprint('done')", "", "NameError", 1))
    assert shares_goal(failed, turn(Ran("def area(n):\n    return n * n\n\narea(3)\nmore = 2")))
    assert not shares_goal(failed, turn(Ran("def area(n):\n    return n * n\n\nmore = 2")))


@pytest.mark.parametrize(("error", "any_name"), [("ImportError", True), ("ModuleNotFoundError", True), ("E", False)])
def test_of_a_program_that_failed_on_an_import_any_name_is_an_end(error: str, any_name: bool) -> None:
    failed = turn(Ran("import quick\nfirst = quick.a()\nlast = quick.b(first)", "", error, 1))
    assert shares_goal(failed, turn(Ran("first = slow()\nother = 2"))) is any_name


@pytest.mark.parametrize(
    ("fix", "lost"),
    [
        ("other = f(1)", "total"), ("total_of_all = f(1)", None), ("tot = f(1)", None),
        ("total_of_all = f(1)\nother = 2", None), ("print(1)", None),
    ],
)  # fmt: skip
def test_a_longer_or_shorter_name_is_the_same_end_wherever_the_fix_binds_it(fix: str, lost: str | None) -> None:
    assert misses_goal(turn(Ran("total = g(1)", "", "NameError", 1)), turn(Ran(fix))) == lost


def edit(*calls: tuple[Mapping[str, object] | str, Status]) -> Turn:
    """Of calls of a tool for files: their arguments, and whether they worked."""
    made = tuple(ToolCall(str(n), "edit", given, 0) for n, (given, _) in enumerate(calls))
    seen = tuple(Observation(str(n), "", status) for n, (_, status) in enumerate(calls))
    return Turn((Segment("sampled", "x"),), made, seen, "call")


@pytest.mark.parametrize(
    ("failed", "fix", "lost"),
    [
        ({"path": "a.py", "old": "x"}, {"path": "b.py", "old": "y"}, "path"),
        ({"path": "a.py", "old": "x"}, {"path": "b.py", "old": "x"}, None),
        ({"path": "a.py", "old": "x"}, {"path": "b.py", "old": "x", "all": True}, "all"),
        ({"path": "a.py", "old": "x 1"}, {"path": "lib/a.py", "old": "x 1 "}, None),
        ({"path": "a.py", "old": "x"}, {"old": "y"}, "path"),
        ({"old": "x"}, {"path": "b.py", "old": "y"}, "old"),
        ({"path": "a.py", "code": "x"}, {"path": "b.py", "old": "y"}, None),
        ({"path": "a.py", "old": "x"}, {"path": "b.py", "code": "y"}, "edit"),
        ("{", {"path": "b.py", "old": "y"}, None),
    ],
)
def test_an_edit_is_fixed_by_the_same_edit_in_another_place_or_by_its_own_text_reworded(
    failed: dict[str, object] | str, fix: dict[str, object], lost: str | None
) -> None:
    assert find_change(edit((failed, "error")), edit((fix, "ok")), 0.5) == lost


def test_a_call_that_worked_is_not_what_the_fix_has_to_try() -> None:
    worked, failed = {"path": "a.py", "old": "x"}, {"path": "b.py", "old": "x"}
    fix = edit(({"path": "c.py", "old": "x"}, "ok"))
    assert find_change(edit((worked, "ok"), (failed, "error")), fix, 0.5) is None


def test_a_fix_that_runs_nothing_has_no_detail() -> None:
    failed = "def f():\n    return 1\n\nf()"
    assert judged(Ran(failed, "", "ValueError"), Ran("def f():\n    return 1\n", "")) == ("unexecuted", "")


def test_a_plan_is_of_what_both_programs_have() -> None:
    failure = turn(Ran("area = side(3)", "", "NameError", 1), said="We take the side. ")
    assert keeps_plan(failure, turn(Ran("total = 3"), said="We count. "))
    assert not keeps_plan(failure, turn(Ran("total = side(3)"), said="We count. "))


def test_words_plan_what_an_assertion_refutes_or_another_way_than_later_words_tell() -> None:
    failed, same = Ran("area = side(3)", "", "NameError", 1), turn(Ran("area = 9"), said="We count. ")
    other = turn(Ran("area = 9"), said="We count. We take another approach. ")
    failure, said = turn(failed, said="We take the side. "), "We take another approach."
    assert find_lost_plan(failure, [same]) is None
    assert find_lost_plan(failure, [same, other]) == said
    assert find_lost_plan(turn(failed), [other]) is None, "it has no words"
    asserted = Ran("assert side(3) == 9", "", "AssertionError", 1)
    assert find_lost_plan(turn(asserted, said="We take the side. "), [same]) == "an assertion failed"


def test_a_call_that_worked_failed_at_no_line() -> None:
    both = turn(Ran("f(1)", "", None, 2), Ran("f(1)", "", "NameError", 2))
    assert [line_of(one) for one in both.observations] == [None, 2]


def test_a_program_is_not_compared_with_a_call_that_has_none() -> None:
    failure = turn(Ran("print(f(1))", "", "NameError", 1))
    assert find_evasion(failure, edit(({"path": "a.py", "old": "x"}, "ok")), lambda number: False) is None


def test_failures_are_one_run_unless_a_call_does_something_or_a_user_speaks_between_them() -> None:
    fails, nothing, works = turn(Ran("f(1)", "", "NameError", 1)), turn(Ran("pass")), turn(Ran("x = 1"))
    spoken, heard = (replace(one, segments=(*one.segments, Segment("prompt", "?"))) for one in (fails, nothing))
    for turns, starts in (
        ([fails, fails, nothing, fails], [0]),
        ([fails, works, fails, works, nothing, fails], [0, 2, 5]),
        ([spoken, fails, heard, fails], [0, 1, 3]),
    ):
        assert run_starts(turns) == starts
