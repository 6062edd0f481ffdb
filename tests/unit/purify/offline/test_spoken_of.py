"""What is spoken of that a repair takes out: by whom, when it is told, and beside which programs it stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foreign import FAILED, FIXED, FORMATS, Step, answer, fails, user, works
from retcon.core.types import Observation, Segment, Status, ToolCall, Trajectory, Turn
from retcon.purify.offline import Repairer, RepairResult
from retcon.transcripts.formats.notations import MINT
from unit.purify.offline.test_kept import ASK, COMMENTED, FAIL, OTHER, purify, reasons
from unit.purify.offline.test_what_is_left import HALVED, NONE, SQRT, with_tail

SAID = "It seems that this function has no meaning here."
WIDTH = "# Fixed width, as they want it.\n"
BLOCKS = "</execute>\n{}\n<execute>"


def details(result: RepairResult) -> list[str]:
    return [one.detail for one in result.left]


def read(*steps: Step) -> Trajectory:
    (raw,) = MINT.read(FORMATS["mint"](steps), "t").trajectories
    return raw


def with_ids(turn: Turn, start: int | None) -> Turn:
    """The turn with two ids, the call at the `start`th of them."""
    of_ids = tuple(replace(s, ids=(1, 2)) if s.kind == "sampled" else s for s in turn.segments)
    return replace(turn, segments=of_ids, calls=tuple(replace(call, start=start) for call in turn.calls))


def calling(said: str, *calls: tuple[str, str, Status]) -> Turn:
    """A turn that calls several programs. calls: the program, what it shows, and how it ends."""
    text = said + "".join(f"\n<run>\n{code}\n</run>" for code, _, _ in calls)
    made = tuple(ToolCall(str(n), "python", {"code": code}, len(said)) for n, (code, _, _) in enumerate(calls))
    seen = tuple(Observation(str(n), shown, status) for n, (_, shown, status) in enumerate(calls))
    shows = (Segment("observation", shown) for _, shown, _ in calls)
    return Turn((Segment("sampled", text), *shows), made, seen, "call")


def purified(*turns: Turn) -> RepairResult:
    return Repairer()(replace(read(ASK, answer("4")), turns=turns))


SHOWS = works("print(29 / 4)", "7.25", "And now")
HELPS = works("helper = 4\nprint(helper)", "4", "And now")
RADIX = works("radix = 2\nprint(radix)", "2", "And now")
WHY = user("Why `helper`?")


@pytest.mark.parametrize(
    ("plan", "later", "left"),
    [
        ("Let me see.", (SHOWS, answer("Twice 7.25 is what we want.")), []),
        ("Let me see.", (answer("Twice 7.25 is what we want."), SHOWS), ["value: 7.25"]),
        ("Let me see.", (works("print(1)"), user("Is it 7.25?"), answer("Yes, it is 7.25.")), []),
        ("Let me see.", (HELPS, WHY, answer("It is four.")), []),
        ("Let me see.", (WHY, HELPS), ["name: helper"]),
        ("We take it by `helper`.", (works("print(1)"),), ["name: helper"]),
        ("We take it by `helper`.", (HELPS,), ["name: helper"]),
        ("We use radix here.", (RADIX,), ["name: radix"]),
        ("Let me see.", (answer("We use radix here."), RADIX), ["name: radix"]),
        ("Let me see.", (RADIX, answer("We use radix here.")), []),
    ],
)  # fmt: skip
def test_late_in_a_transcript_too_what_is_told_only_after_it_is_spoken_of_is_missed(
    plan: str, later: tuple[Step, ...], left: list[str]
) -> None:
    before = [works(f"print({n})", str(n), "So far") for n in range(3)]
    failure = fails("import math\nhelper = 3\nroot = math.radix(16)\nprint(root)", "AttributeError", 3, plan)
    failure = replace(failure, output=f"half is 7.25\n{failure.output.rpartition(':')[0]}{NONE}")
    result = purify(ASK, *before, failure, SQRT, *later)
    assert (details(result), len(result.splices)) == (left, not left)


def test_what_users_say_in_two_messages_is_told_and_what_may_be_no_name_is_not_missed() -> None:
    failure = replace(FAIL, output=f"half is 7.25\n{FAIL.output}", code=f"helper = 3\n{FAIL.code}")
    told = (user("Is it"), user("7.25?"), answer("Yes, it is 7.25 as you say."))
    for later in (told, (user("Why `x`?"), answer("No.")), (answer("We want helper functions here."),)):
        assert details(purify(ASK, failure, SQRT, *later)) == []


def test_a_user_asks_for_an_exception_without_its_module() -> None:
    failure = fails(FAILED, "LinAlgError", 2, "We take the root of it.")
    raw = read(ASK, failure, SQRT, answer("4"), user("What was that LinAlgError?"), answer("No."))
    typed = replace(raw.turns[0].observations[0], error_type="numpy.linalg.LinAlgError")
    result = Repairer()(replace(raw, turns=(replace(raw.turns[0], observations=(typed,)), *raw.turns[1:])))
    assert details(result) == ["exception: LinAlgError"]


def test_a_name_that_is_not_there_counts_in_words_that_stay_and_not_in_those_that_go() -> None:
    failure = fails(FAILED.replace("sqroot", "radix"), "AttributeError", 2, "Once more, we use radix here.")
    failure = replace(failure, output=failure.output.rpartition(":")[0] + NONE)
    assert details(purify(ASK, failure, SQRT, answer("The answer is 4."))) == ["name: radix"]
    cut = "Sorry, radix is an error."
    result = purify(ASK, failure, works(OTHER, "4", f"{cut} Now we list all squares below 81."))
    assert [(one.rule, one.text) for one in result.cuts] == [("apology", cut)]


def test_a_made_up_number_is_none_that_was_told_however_it_is_written() -> None:
    code = "total = x * 3\nprint(total)"
    steps = fails(code, "NameError", 1), works(f"x = 1_000\n{code}", "3000")
    assert details(purify(ASK, *steps)) == ["x = 1000"]
    assert purify(user("three times x, with an x of 1,000?"), *steps).splices


def test_what_a_call_beside_the_failed_one_shows_is_no_error() -> None:
    failure = calling("We see.", (FAILED, "AttributeError", "error"), ("print(dir(radix))", NONE, "ok"))
    fix = calling("We see.", (FIXED, "4.0", "ok"), ("print(dir(root))", "real", "ok"))
    said = Turn((Segment("sampled", "We use radix here."),), (), (), "answer")
    assert len(purified(failure, fix, said).splices) == 1


def test_a_call_that_ran_out_of_time_and_works_the_next_time_was_not_done_before() -> None:
    first = calling("We halve it.", ("half = 8 / 2\nopen(half)", "", "timeout"))
    again = calling("We halve it.", ("half = 8 / 2  # four\nopen(half)", "", "ok"))
    assert reasons(purified(first, again)) == []


def test_what_stands_beside_the_programs_of_a_turn_is_told_as_it_is_written() -> None:
    assert details(
        with_tail(" That error is gone.", ASK, FAIL, SQRT, works("print(2 * root)", "8.0"), answer("8"))
    ) == ["error: That error is gone."]
    assert details(with_tail(" We can see the root there.", ASK, FAIL, SQRT, answer("The root is 4."))) == []
    first, _, rest = FIXED.partition("\n")
    between = BLOCKS.format("That error is gone now.")
    # Of the second program only the first line stands on a line of its own.
    short = FIXED.replace("\n", "; ", 1).replace("\nprint", f"\n{between}print")
    for code in (f"{first}\n{between}\n{rest}", short):
        result = purify(ASK, FAIL, works(code, "4.0"), answer("The root of 16 is 4."))
        assert details(result) == ["error: That error is gone now."]


def test_a_comment_of_the_failed_program_stays_in_blocks_too_and_is_not_said_again_after_them() -> None:
    failure = replace(FAIL, code=WIDTH + FAILED)
    blocks = WIDTH + FIXED.replace("print", BLOCKS.format("Now it is shown.") + "\nprint")
    assert purify(ASK, failure, works(blocks, "4.0"), answer("The root of 16 is 4.")).splices
    fix = works(WIDTH + FIXED, "4.0", "sqrt it is")
    assert details(with_tail(f" Once:\n{WIDTH}{FIXED}\n", ASK, failure, fix, answer("The root is 4."))) == [
        f"fix: {WIDTH.strip()}"
    ]


def test_a_comment_of_a_later_program_that_speaks_of_the_failure_is_cut() -> None:
    later = works("double = 2 * root  # the corrected code\nprint(double)", "8.0", "Now we double it.")
    result = purify(ASK, FAIL, SQRT, later, answer("The root of 16 is 4."))
    assert [(cut.turn, cut.rule, cut.text) for cut in result.cuts] == [(2, "fix", "# the corrected code")]
    assert result.trajectory.turns[1].calls[0].code == "double = 2 * root\nprint(double)"
    assert "corrected" not in result.trajectory.text


def test_no_line_is_cut_with_a_comment_that_ends_in_a_carriage_return() -> None:
    fix = works("# Corrected.\rhalf = root / 2\nprint(half)", "2.0")
    assert "half = root / 2" in purify(ASK, HALVED[0], fix).trajectory.turns[-1].calls[0].code


def test_no_comment_is_cut_of_a_fix_with_ids_of_several_calls_or_that_cannot_be_read() -> None:
    raw = read(ASK, FAIL, works(COMMENTED, "4.0", "Now we take its root."))
    assert reasons(Repairer()(replace(raw, turns=(raw.turns[0], with_ids(raw.turns[1], None))))) == [("words", "fix")]
    failure = calling("We see.", (FAILED, "AttributeError", "error"), ("print(1)", "1", "ok"))
    fix = calling("We see.", (COMMENTED, "4.0", "ok"), ("print(1)", "1", "ok"))
    assert reasons(purified(failure, fix)) == [("words", "fix")]
    indented = " # Corrected.\n half = root / 2\n print(half)"
    assert reasons(purify(ASK, HALVED[0], works(indented, "2.0"))) == [("words", "fix")]


def test_words_of_a_deep_repair_that_go_are_cut_where_they_are_said_once_more() -> None:
    failure = replace(FAIL, text=f"{SAID} We take the root.")
    fix = works(OTHER, "4", "Now we list all squares below 81.")
    result = purify(ASK, failure, fix, answer(f"{SAID} The root of 16 is 4."))
    assert [splice.shallow for splice in result.splices] == [False]
    assert [(cut.turn, cut.rule, cut.text) for cut in result.cuts] == [(2, "repeated", SAID)]


def test_what_a_failure_that_stays_or_words_with_ids_say_is_not_cut() -> None:
    fix = works(FIXED, "4.0", f"{SAID} We write it as sqrt.")
    stays = fails("f(", "NameError", 1, f"{SAID} We go on to the next.")
    assert reasons(purify(ASK, FAIL, fix, stays, answer("It is 4."))) == [("words", "repeated"), ("answered", "")]
    failed = replace(HALVED[0], text="After fixing the error we see it. Now we take half.")
    raw = read(ASK, FAIL, SQRT, failed, HALVED[1])
    result = Repairer()(replace(raw, turns=(*raw.turns[:2], with_ids(raw.turns[2], 1), raw.turns[3])))
    assert ([one.failure for one in result.splices], reasons(result)) == ([2], [("words", "error")])


def test_words_right_beside_a_program_are_told_as_they_are() -> None:
    fix = calling("We see. ", (FIXED, "4.0", "ok"))
    said = Segment("sampled", f"We see. {FIXED} Sorry for that error.")
    fix = replace(fix, segments=(said, *fix.segments[1:]))
    assert details(purified(read(ASK, FAIL, answer("4")).turns[0], fix)) == ["apology: Sorry for that error."]
