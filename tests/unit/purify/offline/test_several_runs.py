"""Repairs beside others: which runs stay whole, whose words count, and what is recorded of each."""

from __future__ import annotations

from dataclasses import replace

from foreign import FAILED, FORMATS, Step, answer, fails, user, works
from retcon.core.types import Observation, Segment, Status, ToolCall, Trajectory, Turn
from retcon.purify.offline import REASONS, Repairer, Splice, UnrepairedFailure
from retcon.transcripts.formats.notations import MINT
from unit.purify.offline.test_kept import ASK, FAIL, FIXED, OTHER, purify, reasons

SQRT = works(FIXED, "4.0", "sqrt it is")
HALVED = [fails("half = roots / 2\nprint(half)", said="Half of it."), works("half = root / 2\nprint(half)", "2.0")]
SHOWN = [fails("a = 1\nprint(b)", "NameError", 2, "We show what is there."), works("b = 1\nprint(b)", "1")]
CODE = "def twice(n):\n    return n + {}\n\nassert twice(4) == 8"
PLANNED = fails(CODE.format(2), "AssertionError", 4, "We add two to the number to double it.")
SECOND = fails(CODE.format("m"), "NameError", 2, "We add the number to itself.")
WORDLESS = works(CODE.format("n"), "ok", "")
"""Once it has the words of the second failure, they could stand for the plan of the first: the run is unsettled."""


def test_of_several_runs_the_one_that_is_unsettled_stays_whole() -> None:
    before = [works("x = 5", "5"), *HALVED, user("And a?"), *SHOWN, user("And four?")]
    after = [answer("It is 8."), user("The root?"), FAIL, SQRT, answer("It is 4.")]
    result = purify(ASK, *before, PLANNED, SECOND, WORDLESS, *after)
    assert result.splices == (Splice(1, 2, True), Splice(3, 4, True), Splice(9, 10, True))
    assert result.left == (UnrepairedFailure(5, "unsettled"), UnrepairedFailure(6, "unsettled"))


def test_a_run_that_is_unsettled_as_a_later_one_stays_whole_does_so_too() -> None:
    """While the later run is repaired, nothing tells the value that the repair of the earlier one would lose."""
    second = replace(SECOND, output="half is 12.345\n" + SECOND.output)
    last = answer("Twice 12.345 is what we want here.")
    result = purify(ASK, PLANNED, second, WORDLESS, user("And once more?"), PLANNED, second, WORDLESS, last)
    assert result.splices == ()
    assert result.left == tuple(UnrepairedFailure(turn, "unsettled") for turn in (0, 1, 3, 4))
    alone = purify(ASK, PLANNED, second, WORDLESS, last)
    assert reasons(alone) == [("plan", "an assertion failed"), ("words", "value")]


def test_what_is_said_after_a_fix_gives_up_no_plan_of_the_failure() -> None:
    for said in ("Step by step, we see that it is 4.", "Manually we find 4 as well."):
        assert purify(ASK, FAIL, SQRT, answer(said)).splices == (Splice(0, 1, True),)


def test_a_deep_fix_may_give_up_the_plan() -> None:
    result = purify(ASK, FAIL, works(OTHER, "4", "We list all squares by hand."))
    assert result.splices == (Splice(0, 1, False),)
    repair = result.trajectory.turns[0].repair
    assert repair is not None
    assert (repair.decision, repair.reason) == ("deep", "similarity below gamma")


def test_a_reason_without_a_detail_is_told_alone() -> None:
    swallows = FIXED.replace("root =", "try:\n    root =").replace("\nprint", "\nexcept ValueError:\n    pass\nprint")
    other = "rows = 12\nprint('a quite different thing', rows)"
    for code, reason in ((other, "unrelated"), (swallows, "swallowed")):
        result = purify(ASK, FAIL, works(code, "4.0"))
        assert [(one.reason, one.detail) for one in result.left] == [(reason, "")]
        repair = result.trajectory.turns[0].repair
        assert repair is not None
        assert repair.reason == REASONS[result.left[0].reason]


def test_what_a_prompt_of_several_parts_tells_is_told_at_their_ends_too() -> None:
    steps: list[Step] = [ASK, fails("total = x + 7\nprint(total)"), works("x = 7\ntotal = x + 7\nprint(total)", "14")]
    (raw,) = MINT.read(FORMATS["mint"](steps), "t").trajectories
    for first, second, splices in (("Let x be 7", "Add it up.", 1), ("Let it be.", "7 is x.", 1), ("Let it", "be.", 0)):
        prompt = (Segment("prompt", first), Segment("prompt", second))
        assert len(Repairer()(replace(raw, prompt=prompt)).splices) == splices


def test_a_value_is_missed_in_the_words_of_a_later_deep_fix_and_not_in_those_that_it_takes_out() -> None:
    failure = replace(FAIL, output="half is 7.25\n" + FAIL.output)
    listed = "values = [n for n in range(99) if n * 2 == root]\nhalf = values[-1] * len('a')\nprint(half)"
    told = "Twice 7.25 is what we want here."
    for before, own, left in (("Half of it.", told, [("words", "value")]), (told, "Now we list all halves.", [])):
        halved = [replace(HALVED[0], text=before), works(listed, "2.0", own)]
        result = purify(ASK, failure, SQRT, *halved, answer("The half is 2."))
        assert result.splices[-1:] == (Splice(2, 3, False),)
        assert reasons(result) == left


def test_a_later_fix_keeps_the_versions_of_its_tokens_as_the_first_does() -> None:
    def turn(code: str, status: Status, version: int) -> Turn:
        words = Segment("sampled", "We. ", (1, 2), (-0.5, -0.5), (version, version))
        call = ToolCall("c", "python", {"code": code}, 4, start=2)
        return Turn(
            (words, Segment("sampled", code, (3,), (-0.1,), (version,))),
            (call,),
            (Observation("c", "", status),),
            "call",
        )

    turns = (turn(FAILED, "error", 1), turn(FIXED, "ok", 2), turn(HALVED[0].code, "error", 3))
    result = Repairer()(Trajectory("t", "k", (), (*turns, turn(HALVED[1].code, "ok", 4))))
    assert result.splices == (Splice(0, 1, True), Splice(2, 3, True))
    assert [[(s.logprobs, s.versions) for s in one.generated] for one in result.trajectory.turns] == [
        [((-0.5, -0.5), (1, 1)), (None, (2,))],
        [(None, None), (None, (4,))],
    ]
