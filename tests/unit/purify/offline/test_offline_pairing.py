"""Which later call counts as the fix of a failed one, and which failures are left alone, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from foreign import FAILED, FIXED, REPAIRED, Step, answer, fails, mint, ours, user, works
from retcon.core.codec import from_dict
from retcon.core.types import Observation, Segment, Status, ToolCall, Trajectory, Turn
from retcon.purify.offline import REASONS, Repairer, RepairResult, Splice, UnrepairedFailure
from retcon.transcripts.formats.notations import MINT

ASK = user("?")


def purify(*steps: Step, **options: object) -> RepairResult:
    (trajectory,) = MINT.read(mint(steps), "t").trajectories
    return Repairer(**options)(trajectory)  # type: ignore[arg-type]


def reasons(result: RepairResult) -> list[tuple[int, str]]:
    return [(left.turn, left.reason) for left in result.left]


def test_the_fix_takes_the_place_of_the_failure_and_the_raw_turns_are_kept() -> None:
    result = purify(*REPAIRED)
    assert result.splices == (Splice(0, 1, True),)
    turn = result.trajectory.turns[0]
    assert "let me see" in turn.text
    assert turn.calls[0].code == FIXED
    assert [t.calls[0].code for t in turn.raw()] == [FAILED, FIXED]
    assert turn.repair is not None
    assert turn.repair.similarity is not None
    assert turn.repair.similarity > 0.9
    assert result.trajectory.failures == 0
    assert result.trajectory.raw_failures == 1


def test_a_fix_below_gamma_brings_its_own_words() -> None:
    asked, failure, fix, said = REPAIRED
    result = purify(asked, failure, replace(fix, text="We take sqrt for that."), said, gamma=1.0)
    assert result.splices == (Splice(0, 1, False),)
    assert "We take sqrt for that." in result.trajectory.turns[0].text
    assert "let me see" not in result.trajectory.turns[0].text


def test_the_fix_is_compared_with_what_failed_first() -> None:
    second = "import math\nroot = [16 ** 0.5 for _ in range(40)]\nprint('a much longer way to say it', root)"
    fix = second.replace("40", "4")
    result = purify(ASK, fails("root = sqrt16", line=1), fails(second, line=2), works(fix))
    assert result.splices == (Splice(0, 2, False),)


def test_k_failures_may_lead_to_a_fix_and_no_more() -> None:
    steps = [ASK, *[fails(FAILED, line=2)] * 3, works(FIXED)]
    assert purify(*steps).splices == (Splice(0, 3, True),)
    assert reasons(purify(*steps, attempts=2)) == [(0, "attempts"), (1, "attempts"), (2, "attempts")]
    # Calls between them that do nothing are attempts as well.
    assert reasons(purify(*steps[:3], works("pass"), steps[4], attempts=2)) == [(0, "attempts"), (1, "attempts")]


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ([], "end"), ([answer("4")], "answered"), ([user("go on"), works(FIXED)], "user"),
        ([works("other = 12\nprint('a quite different thing', other)")], "unrelated"), ([works("pass")], "end"),
    ],
)  # fmt: skip
def test_what_is_no_fix(after: Sequence[Step], reason: str) -> None:
    result = purify(ASK, fails(FAILED, line=2), *after)
    assert result.splices == ()
    assert reasons(result) == [(0, reason)]
    assert result.trajectory.turns[0].repair is not None
    assert result.trajectory.turns[0].repair.reason.startswith(REASONS[result.left[0].reason])


def test_a_fix_that_does_nothing_is_one_more_attempt() -> None:
    assert purify(ASK, fails(FAILED, line=2), works("# nothing"), works(FIXED)).splices == (Splice(0, 2, True),)


def test_a_later_failure_of_the_run_may_be_what_was_fixed() -> None:
    result = purify(ASK, fails("table = load('sales')\nprint(table.head())"), fails(FAILED, line=2), works(FIXED))
    assert reasons(result) == [(0, "unrelated")]
    assert result.splices == (Splice(1, 2, True),)


def test_the_fix_of_a_retry_that_speaks_of_the_failure_before_it_is_none() -> None:
    first = fails("table = load('sales')\nprint(table.head())")
    steps = (
        ASK, first, fails(FAILED, line=2, said="Sorry for that, we take the root of it."), works(FIXED, said="So."),
    )  # fmt: skip
    assert reasons(purify(*steps)) == [(0, "unrelated"), (1, "retry")]
    assert purify(*steps[:2], user("The root, please."), *steps[2:]).splices == (Splice(1, 2, True),)
    given = replace(steps[2], text="Since it is a square, we take the root of it.")
    assert purify(*steps[:2], given, *steps[3:]).splices == (Splice(1, 2, True),), "a reason is no word on a failure"


def test_an_unclear_output_ends_the_run() -> None:
    unclear = works("import traceback\ntraceback.print_exc()", fails("").output)
    assert reasons(purify(ASK, fails(FAILED, line=2), unclear, works(FIXED))) == [(0, "unclear")]


def test_names_that_only_the_failed_call_defined_are_needed() -> None:
    failed = "import math\nside = 16\nroot = math.sqroot(side)\nprint(root)"
    fix = "import math\nroot = math.sqrt(side)\nprint(root)"
    assert purify(ASK, fails(failed, line=3), works(fix)).left == (UnrepairedFailure(0, "state", "side"),)
    assert purify(ASK, fails(failed, line=3), works(fix), state="ignore").splices
    assert purify(ASK, fails(failed, line=3), works(FIXED), works("print(side)")).left == (
        UnrepairedFailure(0, "state", "side"),
    )
    assert purify(ASK, fails(failed, line=3), works(FIXED), works("side = 2"), works("print(side)")).splices
    # The call failed before it came to that line.
    assert purify(ASK, fails(failed, line=1), works(fix)).splices


def test_an_import_that_was_made_before_is_not_lost() -> None:
    failed, fix = "import math\nroot = math.sqroot(16)", "root = math.sqrt(16)"
    assert reasons(purify(ASK, fails(failed, line=2), works(fix))) == [(0, "state")]
    assert purify(ASK, works("import math"), fails(failed, line=2), works(fix)).splices


def test_names_that_only_an_import_of_all_names_gave_are_needed() -> None:
    failed = "from math import *\nroot = sqroot(16)"
    factor = works("def f(n):\n    return [k for k in range(n)]\nprint(floor(2.5), f(3))", said="And now")

    def left(fix: str, *steps: Step) -> list[tuple[int, str]]:
        return reasons(purify(ASK, *steps[:-1], fails(failed, line=2), works(fix), *steps[-1:]))

    alone, again = "root = 16 ** 0.5", "from math import *\nroot = sqrt(16)"
    assert left("root = sqrt(16)") == left(alone, factor) == [(0, "state")]
    assert left("print 'old'\nroot = sqrt(16)", factor) == [(0, "state")]
    assert left(again, factor) == left(alone) == []
    assert left(alone, works("floor = int"), factor) == left("root = sqrt(16)", works(again), user("?")) == []
    assert left(alone, works("print(floor(x", "1")) == [(0, "state")], "any word might be a name there"
    assert reasons(purify(ASK, fails(failed, line=1), works(alone), factor)) == [], "it failed in the import"


def test_packages_that_the_failed_call_installed_are_needed_unless_the_fix_installs_them_too() -> None:
    failed = "!pip install pulp\nroot = sqroot(16)"
    assert reasons(purify(ASK, fails(failed, line=2), works("root = sqrt(16)"))) == [(0, "effects")]
    assert purify(ASK, fails(failed, line=2), works(failed.replace("sqroot", "sqrt"))).splices


def test_files_that_the_failed_call_wrote_are_needed_unless_the_fix_writes_them_too() -> None:
    failed = "open('f', 'w').write('a')\nroot = sqroot(16)"
    assert reasons(purify(ASK, fails(failed, line=2), works("root = sqrt(16)\nprint(root)"))) == [(0, "effects")]
    assert purify(ASK, fails(failed, line=2), works(failed.replace("sqroot", "sqrt"))).splices


def test_a_fix_that_no_longer_asserts_or_that_swallows_is_none() -> None:
    failed = "res = f(3)\nassert res == 4"
    assert reasons(purify(ASK, fails(failed, "AssertionError", 2), works("res = f(3)\nprint(res)"))) == [
        (0, "assertion")
    ]
    swallows = "try:\n    res = f(3)\nexcept Exception:\n    res = None\nprint(res)"
    assert reasons(purify(ASK, fails("res = f(3)\nprint(res)"), works(swallows))) == [(0, "swallowed")]


def two_calls(first: str, second: str, *statuses: str) -> Turn:
    calls = tuple(ToolCall(f"c{n}", "python", {"code": code}, 0) for n, code in enumerate((first, second)))
    seen = tuple(Observation(c.id, "", status) for c, status in zip(calls, statuses, strict=True))  # type: ignore[arg-type]
    return Turn((Segment("sampled", first + second),), calls, seen, "call")


def test_a_call_that_worked_beside_the_failed_one_must_be_in_the_fix() -> None:
    failure = two_calls("print(17 * 23)", FAILED, "ok", "error")
    for fix, splices in ((two_calls("print(17 * 23)", FIXED, "ok", "ok"), 1), (two_calls(FIXED, FIXED, "ok", "ok"), 0)):
        result = Repairer(state="ignore")(Trajectory("t", "k", (), (failure, fix)))
        assert len(result.splices) == splices
        assert [left.reason for left in result.left] == ["sibling"] * (1 - splices)


def test_a_call_of_another_tool_is_no_fix() -> None:
    failure, fix = two_calls(FAILED, "print(2)", "error", "ok"), two_calls(FIXED, "print(2)", "ok", "ok")
    other = replace(fix, calls=tuple(replace(call, name="notebook") for call in fix.calls))
    result = Repairer()(Trajectory("t", "k", (), (failure, other)))
    assert result.left == (UnrepairedFailure(0, "unrelated", "another tool"),)


def test_a_comment_that_speaks_of_the_failure_stays_where_a_turn_has_several_programs() -> None:
    failed, fix = two_calls(FAILED, "print(2)", "error", "ok"), two_calls(FIXED, "print(2)", "ok", "ok")
    commented = two_calls(f"# Fixed: it is sqrt\n{FIXED}", "print(2)", "ok", "ok")
    assert Repairer(state="ignore")(Trajectory("t", "k", (), (failed, fix))).splices
    result = Repairer(state="ignore")(Trajectory("t", "k", (), (failed, commented)))
    assert [(left.reason, left.detail) for left in result.left] == [("words", "fix: # Fixed: it is sqrt")]


def test_a_number_of_the_failed_program_itself_was_told_by_nobody() -> None:
    failure = fails("total = x + 7\nprint(total)")
    fix = works("x = 7\ntotal = x + 7\nprint(total)", "14")
    assert reasons(purify(ASK, failure, fix)) == [(0, "avoided")]
    assert purify(user("Take 7 for x."), failure, fix).splices
    among_others = replace(fix, code="n, *others = 1, 2, 3\n" + fix.code)
    assert reasons(purify(ASK, failure, among_others)) == [(0, "avoided")]


def test_the_calls_of_a_later_turn_are_read_in_their_order() -> None:
    failed = Turn(
        (Segment("sampled", "x"),), (ToolCall("a", "python", {"code": "side = 16\n" + FAILED}, 0),),
        (Observation("a", "", "error"),), "call",
    )  # fmt: skip
    fix = replace(
        failed, calls=(ToolCall("b", "python", {"code": FIXED}, 0),), observations=(Observation("b", "", "ok"),)
    )
    for first, second, reason in (("print(side)", "side = 1", ["state"]), ("side = 1", "print(side)", [])):
        result = Repairer()(Trajectory("t", "k", (), (failed, fix, two_calls(first, second, "ok", "ok"))))
        assert [left.reason for left in result.left] == reason


def test_a_shell_command_is_left_alone_unless_state_is_ignored() -> None:
    call = ToolCall("a", "bash", {"command": "make al", "code": "make al"}, 0, language="shell")
    good = ToolCall("b", "bash", {"command": "make all", "code": "make all"}, 0, language="shell")
    turns = (
        Turn((Segment("sampled", "x"),), (call,), (Observation("a", "", "error"),), "call"),
        Turn((Segment("sampled", "y"),), (good,), (Observation("b", "", "ok"),), "call"),
    )
    trajectory = Trajectory("t", "k", (), turns)
    assert [left.reason for left in Repairer()(trajectory).left] == ["effects"]
    assert Repairer(state="ignore")(trajectory).splices


def test_log_probs_after_a_splice_are_unknown() -> None:
    trajectory = from_dict(ours([*REPAIRED[:3], works("print(root)")]))
    scored = Segment("sampled", "x", (1, 2), (-0.5, -0.5))
    turns = (*trajectory.turns[:-1], Turn((scored,)))
    result = Repairer()(Trajectory("t", "k", trajectory.prompt, turns))
    assert result.splices
    assert result.trajectory.turns[-1].segments[0].ids == (1, 2)
    assert result.trajectory.turns[-1].segments[0].logprobs is None


def test_log_probs_of_the_words_before_a_splice_stay() -> None:
    def turn(code: str, status: Status) -> Turn:
        written = (Segment("sampled", "We. ", (1, 2), (-0.5, -0.5)), Segment("sampled", code, (3,), (-0.1,)))
        call = ToolCall("c", "python", {"code": code}, 4, start=2)
        return Turn(written, (call,), (Observation("c", "", status),), "call")

    result = Repairer()(Trajectory("t", "k", (), (turn(FAILED, "error"), turn(FIXED, "ok"))))
    words, fix = result.trajectory.turns[0].generated
    assert (words.kind, words.logprobs) == ("sampled", (-0.5, -0.5))
    assert (fix.kind, fix.logprobs) == ("spliced", None)


def test_a_clean_trajectory_is_the_same_object() -> None:
    trajectory = from_dict(ours([ASK, works("x = 1"), answer("1")]))
    assert Repairer()(trajectory).trajectory is trajectory


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"gamma": 1.5}, {"state": "maybe"}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Repairer(**wrong)  # type: ignore[arg-type]
    assert Repairer(1, gamma=0.0) != Repairer(1, gamma=1.0), "both bounds are settings"


FIRST = "values = [n * n for n in range(1, 100)]\nbest = max(values) / (len(values) - 99)\nprint(best)"
SECOND = FIRST.replace(" - 99", "")


@pytest.mark.parametrize(
    "said",
    [
        "Let us try a different approach.", "Instead of dividing them we take the greatest.",
        "We take the greatest instead of just dividing them.", "We need to rethink our strategy.",
        "Again: directly is slow, so we go step by step.", "Once more, manually.",
    ],
)  # fmt: skip
def test_words_of_a_plan_that_was_given_up_do_not_stay(said: str) -> None:
    failure = fails(FIRST, "ZeroDivisionError", 2, "We divide the greatest square by what is left.")
    assert reasons(purify(ASK, failure, works(SECOND, "9801", said))) == [(0, "plan")]
    # In an attempt between the two the plan was given up as well.
    between = fails(SECOND.replace("max", "maximum"), "NameError", 2, said)
    assert (0, "plan") in reasons(purify(ASK, failure, between, works(SECOND, "9801", "Of course.")))
    # What is tried after it may be what was fixed; but then nothing would say any more that the plan was given up.
    result = purify(ASK, failure, replace(between, text="So."), works(SECOND, "9801", said))
    assert (reasons(result), result.splices) == ([(0, "unsettled"), (1, "unsettled")], ())
    assert purify(ASK, failure, works(SECOND, "9801", "The list has 99 of them.")).splices
    # Where nothing was said of a plan, none was given up.
    assert purify(ASK, replace(failure, text="So."), works(SECOND, "9801", said)).splices


@pytest.mark.parametrize(
    "said",
    [
        "I apologize for the oversight, that is not it.",
        "It seems I made another mistake. We should sort them.",
        "This does not seem right. We should sort them.",
        "The result is incorrect, as it has to be even.",
        "Let us try another approach now.",
    ],
)
def test_a_fix_that_the_model_takes_back_is_none(said: str) -> None:
    failure = fails(FIRST, "ZeroDivisionError", 2, "We divide the greatest square by what is left.")
    fix = works(SECOND, "9801")
    assert reasons(purify(ASK, failure, fix, answer(said))) == [(0, "doubted")]
    assert reasons(purify(ASK, failure, fix, works(SECOND, "9", said))) == [(0, "doubted")]
    assert reasons(purify(ASK, failure, fix, works("# nothing", "", "So then."), answer(said))) == [(0, "doubted")]
    # What a user says in between is what is apologised for; and so is any answer.
    assert purify(ASK, failure, fix, user("No."), answer(said)).splices
    assert purify(ASK, failure, fix, answer("The answer is 9801."), user("No."), answer(said)).splices
    assert purify(ASK, failure, fix, answer("No two numbers satisfy it: there is no solution.")).splices


@pytest.mark.parametrize(
    ("failed", "type", "fix", "output"),
    [
        (FIRST, "ZeroDivisionError", FIRST.replace("100", "10"), "9"),
        ("total = sum(n for n in range(10**8))", "TimeoutError", "total = sum(n for n in range(10**4))", "9"),
        ("print([f(n) for n in range(-400, 9)])", "ZeroDivisionError", "print([f(n) for n in range(-40, 9)])", "[1]"),
        ("rows = [2 * x, 3 * x]\nprint(rows)", "NameError", "x = 7\nrows = [2 * x, 3 * x]\nprint(rows)", "[14, 21]"),
        (
            "rows = [2 * x, 3]\nx, y = np.solve(rows)\nprint(x)", "NameError",
            "x = 3\nrows = [2 * x, 3]\nx, y = np.solve(rows)\nprint(x)", "2",
        ),
        ("total = 0\nrows = [2 * x]\nprint(rows)", "NameError", "x = 0\nrows = [2 * x]\nprint(rows)", "[0]"),
        ("good = [s for s in found if s.real()]\ngood", "TypeError", "good = [s for s in found if s == 1]\ngood", "[]"),
        ("big = [float(v) for v in vs]\nbig", "TypeError", "big = [float(v) for v in vs if v.is_real]\nbig", "[1.0]"),
        (
            "a_value = solve(eq, a)[0]\nslope = eq.subs({a: a_value})\nprint(slope)", "IndexError",
            "slope = eq.subs({a: 1})\nprint(slope)", "1",
        ),
        ("rows = [2 * x, 3 * x]\nprint(rows)", "NameError", "x = None\nrows = [2, x, 3, x]\nprint(rows)", "[]"),
        (
            "found = [n for n in data if n > 3]\nprint(found[0])", "IndexError",
            "found = [n for n in data if n > 3]\nif found:\n    print(found[0])\nelse:\n    print('nothing found')",
            "nothing found",
        ),
    ],
)  # fmt: skip
def test_a_fix_that_goes_round_the_failure_is_none(failed: str, type: str, fix: str, output: str) -> None:
    assert reasons(purify(ASK, fails(failed, type, 1), works(fix, output))) == [(0, "avoided")]


def test_a_step_that_was_done_before_the_failure_is_no_fix_of_it() -> None:
    halved, failure = "half = table.total / 2\nhalf", fails("half = table.totals / 2\nhalf", "AttributeError", 1)
    before = works(halved, "21")
    assert reasons(purify(ASK, before, failure, works("# Halve it.\n" + halved, "21"))) == [(1, "avoided")]
    assert reasons(purify(ASK, replace(before, output="Out[1]: 21"), failure, works(halved, "Out[3]: 21"))) == [
        (1, "avoided")
    ]
    assert reasons(purify(ASK, replace(before, output="Out[1]: 21"), failure, works(halved, " 21"))) == [(1, "avoided")]
    assert purify(ASK, before, user("Once more."), failure, works(halved, "21")).splices
    assert purify(ASK, before, failure, works(halved, "20")).splices  # it has another result now
    assert purify(ASK, before, fails(halved, "TimeoutError", 1), works(halved, "21")).splices  # it is what failed


def test_what_looks_like_going_round_and_is_not() -> None:
    missing = "rows = [2 * x, 3 * x]\nprint(sum(rows))"
    told = user("What is it for 7?")
    assert purify(told, fails(missing), works("x = 7\n" + missing, "35")).splices
    count = "for n in [3, 4]:\n    x += n\nprint(x)"
    assert purify(ASK, fails(count, line=2), works("x = 0\n" + count, "7")).splices
    alone = "roots = solve(x**2 + 1)\nprint(roots)"
    assert purify(ASK, fails(alone), works("from sympy import solve\n\n" + alone, "[]")).splices  # none is the result
    assert reasons(purify(ASK, fails(alone), works(alone.replace("+", "+ 1 +"), "[]"))) == [(0, "avoided")]
    one_less = fails("print([row[n] for n in range(9)])\nrow = 1", "IndexError", 1)
    assert purify(ASK, one_less, works("print([row[n] for n in range(8)])\nrow = 1")).splices
    guarded = "found = [n for n in data]\nif found:\n    print(found[0])\nelse:\n    print('nothing found')"
    assert purify(
        ASK, fails("found = [n for n in data]\nprint(found[0])", "IndexError", 2), works(guarded, "3")
    ).splices


def test_a_fix_that_is_for_something_else_is_none_however_alike() -> None:
    failed = "eq = Eq(4*x - 2*i - 1312, 0)\ni_value = solve(eq, i)[0]\ni_value"
    assert reasons(
        purify(ASK, fails(failed, "IndexError", 2), works(failed.replace("i_value", "x_value").replace(", i", ", x")))
    ) == [(0, "unrelated")]
    assert purify(ASK, fails(failed, "IndexError", 2), works(failed.replace("i_value", "i_value_new"))).splices


SOLVED = "eq = Eq(60*x - 30*(20 - x), 660)\ndays = solve(eq, x)[0]\nrest = 20 - days\nrest"


def test_what_a_solver_was_for_is_worked_out_in_the_open() -> None:
    failure = fails("from sympy import Eq, solve\n" + SOLVED, "ModuleNotFoundError", 1)
    fix = "days = 1260 / 90\nrest = 20 - days\nrest"
    assert reasons(purify(ASK, failure, works(fix, "6.0"))) == [(0, "constant")]
    assert purify(ASK, failure, works("# 90*x = 1260\n# x = 1260 / 90\n" + fix, "6.0")).splices
    assert purify(ASK, failure, works(fix, "6.0", "We have 90x = 1260, which gives x = 1260/90.")).splices
    searched = "days = next(x for x in range(20) if 60*x - 30*(20 - x) == 660)\nrest = 20 - days\nrest"
    assert purify(ASK, failure, works(searched, "6")).splices
