"""What a repair leaves: where exactly words are cut, which values are missed, and how a program is written anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foreign import FORMATS, Step, answer, fails, user, works
from retcon.core.types import Observation, RepairRecord, Segment, ToolCall, Turn
from retcon.purify.kept import Edit, apply_edits
from retcon.purify.offline import REASONS, Repairer, RepairResult
from retcon.purify.words import names_of, rewrite
from retcon.transcripts.detector import Detector
from retcon.transcripts.formats.notations import MINT
from retcon.transcripts.purifier import purify_transcript
from unit.purify.offline.test_kept import ASK, COMMENTED, FAIL, FAILED, FIXED, OTHER, purify, reasons


def with_tail(text: str, *steps: Step) -> RepairResult:
    """Of steps whose last but one is the fix, which says `text` after its call, before it has seen the output."""
    (raw,) = MINT.read(FORMATS["mint"](steps), "t").trajectories
    fix = raw.turns[-2]
    first, *others = fix.segments
    fix = replace(fix, segments=(replace(first, text=first.text + text), *others))
    return Repairer()(replace(raw, turns=(*raw.turns[:-2], fix, raw.turns[-1])))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (" This gives 12.345.", [("words", "value: 12.345")]),
        (" This was first done in 2024.", []),
        (" It gives 4.0.", []),
        (" Sorry for that error.", [("words", "apology: Sorry for that error.")]),
        (" As you see, it is done.", []),
    ],
)
def test_what_a_fix_says_before_it_has_seen_its_output(text: str, left: list[tuple[str, str]]) -> None:
    result = with_tail(text, ASK, FAIL, works(FIXED, "4.0", "sqrt it is"), answer("The root of 16 is 4."))
    assert [(one.reason, one.detail) for one in result.left] == left
    told = with_tail(text, user("Is it 12.345?"), FAIL, works(FIXED, "4.0", "sqrt it is"), answer("So it is."))
    assert [one.detail for one in told.left] == [detail for _, detail in left if "value" not in detail]


def test_words_between_the_blocks_of_a_program_are_read() -> None:
    parts = FIXED.replace("print", "</execute>\nThat error is gone now.\n<execute>\nprint")
    assert reasons(purify(ASK, FAIL, works(parts, "4.0"), answer("The root of 16 is 4."))) == [("words", "error")]
    parts = FIXED.replace("print", "</execute>\nNow it is shown.\n<execute>\nprint")
    assert purify(ASK, FAIL, works(parts, "4.0"), answer("The root of 16 is 4.")).splices


def test_a_value_or_name_is_missed_where_nothing_that_stays_tells_it_first() -> None:
    failure = replace(FAIL, output="half is 7.25\n" + FAIL.output, code="helper = 3\n" + FAIL.code)
    fix = works(FIXED, "4.0", "sqrt it is")

    def left(*later: Step) -> list[tuple[str, str]]:
        return [(one.reason, one.detail) for one in purify(ASK, failure, fix, *later).left]

    assert left(answer("Twice 7.25 is what we want here.")) == [("words", "value: 7.25")]
    assert left(answer("The `helper` is what we want here.")) == [("words", "name: helper")]
    assert left(works("print(29 / 4)", "7.25", "And now"), answer("Twice 7.25 is what we want.")) == []
    assert left(user("Is it 7.25?"), answer("Yes, it is 7.25 as you say.")) == []
    before = purify(ASK, works("print(29 / 4)", "7.25"), failure, fix, answer("Twice 7.25 is what we want."))
    assert (len(before.splices), before.left) == (1, ())
    assert left(answer("Twice 7.25 is what we want."), works("print(29 / 4)", "7.25")) == [("words", "value: 7.25")]


@pytest.mark.parametrize(
    ("output", "said", "left"),
    [
        ("98765.0", "The roots are 98765 and 4.", "value: 98765"),
        ("98765", "The roots are 98,765 and 4.", "value: 98765"),
        ("98,765", "The roots are 98765.00 and 4.", "value: 98765"),
        ("[(98, 765)]", "The roots are 98,765 and 4.", None),
        ("16.0", "The root of 16 is 4.00.", None),
        ("3.0", "The roots are 3 and 4.", None),
    ],
)
def test_a_value_is_missed_however_it_is_written(output: str, said: str, left: str | None) -> None:
    failure = replace(FAIL, output=f"big root: {output}\n{FAIL.output}")
    result = purify(ASK, failure, works(FIXED, "4.0", "sqrt it is"), answer(said))
    assert [one.detail for one in result.left] == ([] if left is None else [left])


NONE = ": module 'math' has no attribute 'radix'"
WHAT = (user("What was that AttributeError?"), answer("No."))
SQRT = works("import math\nroot = math.sqrt(16)\nprint(root)", "4.0", "sqrt it is")


@pytest.mark.parametrize(
    ("plan", "later", "left"),
    [
        ("I will call math.radix on it.", (answer("The answer is 4."),), "name: radix"),
        ("We use radix here.", (answer("The answer is 4."),), "name: radix"),
        ("Let me see.", (answer("There is no way to write radix here. The answer is 4."),), "name: radix"),
        ("Let me see.", (answer("The radix is 4."),), None),
        ("Let me see.", (answer("The root is 4. It is an integer."),), None),
        ("Let me see.", (answer("4"), *WHAT), "exception: AttributeError"),
        ("Let me see.", WHAT, "exception: AttributeError"),
        ("Let me see.", (answer("4"), user("Why math.radix at first?"), answer("No.")), "name: radix"),
        ("Let me see.", (answer("4"), user("Was there an error?"), answer("No.")), None),
        ("Let me see.", (answer("4"), user("And math.sqrt, if x has no value?"), answer("NameError.")), None),
        ("Let me see.", (fails("f(x)", "AttributeError", line=1), *WHAT), None),
    ],
)  # fmt: skip
def test_a_name_is_missed_where_it_can_be_no_word_and_users_may_ask_for_it(
    plan: str, later: tuple[Step, ...], left: str | None
) -> None:
    failure = fails("import math\nroot = math.radix(16)\nprint(root)", "AttributeError", 2, plan)
    failure = replace(failure, output=failure.output.rpartition(":")[0] + NONE)
    result = purify(ASK, failure, SQRT, *later)
    assert [one.detail for one in result.left if one.turn == 0] == ([] if left is None else [left])
    told = purify(user("Does AttributeError come of math.radix?"), failure, SQRT, *later)
    assert told.splices, "all of it was told before"


def test_cuts_of_two_repairs_in_one_answer_leave_something_of_it() -> None:
    said = "It seems that this function has no meaning here."
    first = [FAIL, works(FIXED, "4.0", f"{said} We write it as sqrt.")]
    second = [fails("half = roots / 2\nprint(half)", said="Half of it."), works("half = root / 2\nprint(half)")]
    for rest, splices in (("", 1), (" The root of 16 is 4.", 2)):
        result = purify(ASK, *first, *second, answer(f"{said} The error is gone.{rest}"))
        assert len(result.splices) == splices
        assert result.trajectory.turns[-1].text == (rest.strip() or said)


HALVED = [fails("half = roots / 2\nprint(half)", said="Half of it."), works("half = root / 2\nprint(half)")]
GONE = "The previous error is gone by now."


def test_what_two_repairs_would_cut_is_cut_once() -> None:
    first = [ASK, FAIL, works(FIXED, "4.0", f"{GONE} We write it as sqrt.")]
    said = answer(f"{GONE} The root of 16 is 4.")
    for last in ([said], [*HALVED, said]):
        result = purify(*first, *last)
        assert len(result.splices) == (len(last) + 1) // 2
        assert [(cut.rule, cut.text) for cut in result.cuts] == [("error", GONE)]


def test_what_was_cut_by_the_rules_for_a_fix_is_not_cut_by_those_for_later_words() -> None:
    said = "That crashed, so here is the corrected code."
    listed = "values = [n for n in range(99) if n * 2 == root]\nhalf = values[-1] * len('a')\nprint(half)"
    fix = works(listed, "2.0", f"{said} Now we list all halves there are.")
    result = purify(ASK, FAIL, works(FIXED, "4.0", "sqrt it is"), HALVED[0], fix, answer("The half is 2."))
    assert [splice.shallow for splice in result.splices] == [True, False]
    assert [(cut.rule, cut.text) for cut in result.cuts] == [("error", said)]


def test_what_was_cut_is_told_and_counted_in_the_order_of_the_turns() -> None:
    double = works("print(2 * root)", "8.0", f"{GONE} Now we double it.")
    said = answer("After fixing the error we see it. The root of 16 is 4.")
    steps = [ASK, FAIL, works(FIXED, "4.0", "sqrt it is"), double, said]
    result = purify(*steps)
    assert [(cut.turn, cut.rule) for cut in result.cuts] == [(2, "error"), (3, "error")]
    repair = result.trajectory.turns[0].repair
    assert repair is not None
    assert repair.cut == result.cuts
    assert dict(purify_transcript(FORMATS["mint"](steps))[1].cut) == {"error": 2}


def test_what_is_repeated_is_cut_though_another_repair_was_tried_first() -> None:
    code = "def twice(n):\n    return n + {}\n\nassert twice(4) == 8"
    said = "The existing code has no meaning for us here."
    first = fails(code.format(2), "AssertionError", 4, "We add two to the number to double it.")
    first = replace(first, output=f"half is 12.345\n{first.output}")
    retry = fails(code.format("m"), "NameError", 2, said)
    fix = works(code.format("n"), "ok", "The number is added to itself.")
    result = purify(ASK, first, retry, fix, answer(f"{said} Twice 12.345 is what we want here."))
    assert (reasons(result), [one.failure for one in result.splices]) == ([("plan", "an assertion failed")], [1])
    assert [(cut.rule, cut.text) for cut in result.cuts] == [("repeated", said)]


def test_a_value_of_the_removed_output_is_missed_in_the_words_of_a_fix() -> None:
    failure = replace(FAIL, output="half is 7.25\n" + FAIL.output)
    for asked, said, left in (
        (ASK, "We list all squares below 7.25 and take the last one.", ["value: 7.25"]),
        (user("Is it 7.25?"), "We list all squares below 7.25 and take the last one.", []),
    ):
        result = purify(asked, failure, works(OTHER, "4", said), answer("The root of 16 is 4."))
        assert [one.detail for one in result.left] == left


def test_a_value_of_an_attempt_between_is_missed_too() -> None:
    between = replace(FAIL, output="half is 7.25\n" + FAIL.output)
    result = purify(ASK, FAIL, between, works(FIXED, "4.0"), answer("Twice 7.25 is what we want here."))
    assert reasons(result) == [("words", "value")] * 2


def test_log_probs_between_two_repairs_are_unknown_too() -> None:
    (raw,) = MINT.read(FORMATS["mint"]([ASK, FAIL, SQRT, works("print(root)"), *HALVED]), "t").trajectories
    known: dict[str, Any] = {"ids": (1,), "logprobs": (-0.5,), "versions": (3,)}
    scored = [replace(s, **known) if s.kind == "sampled" else s for s in raw.turns[2].segments]
    between = replace(raw.turns[2], segments=tuple(scored))
    result = Repairer()(replace(raw, turns=(*raw.turns[:2], between, *raw.turns[3:])))
    assert [splice.failure for splice in result.splices] == [0, 3]
    left = [(s.logprobs, s.versions) for s in result.trajectory.turns[1].generated]
    assert left == [(None, None)] * len(between.generated)


def test_a_failure_that_was_judged_before_stays_judged_where_it_is_asked_what_is_settled() -> None:
    steps = [ASK, FAIL, FAIL, SQRT, answer("It is 4."), user("And f?"), fails("f(2)"), answer("No.")]
    (raw,) = MINT.read(FORMATS["mint"]([*steps, user("And half of it?"), *HALVED]), "t").trajectories
    judged = replace(raw.turns[0], repair=RepairRecord("unrepaired", 0))
    result = Repairer()(replace(raw, turns=(judged, *raw.turns[1:])))
    assert ([splice.failure for splice in result.splices], reasons(result)) == ([1, 6], [("answered", "")])


def test_a_comment_that_the_failed_program_has_too_stays() -> None:
    failed, fixed = (f"# Fixed width, as they want it.\n{code}" for code in (FAILED, FIXED))
    result = purify(ASK, replace(FAIL, code=failed), works(fixed, "4.0"), answer("The root of 16 is 4."))
    assert ([one.shallow for one in result.splices], result.cuts) == ([True], ())
    assert result.trajectory.turns[0].calls[0].code == fixed


def test_nothing_is_cut_of_a_fix_with_ids() -> None:
    deep = [ASK, FAIL, works(OTHER, "4", "Sorry, an error. Now we list all squares below 81.")]
    (raw,) = MINT.read(FORMATS["mint"](deep), "t").trajectories
    of_ids = [replace(s, ids=(1,)) if s.kind == "sampled" else s for s in raw.turns[1].segments]
    result = Repairer()(replace(raw, turns=(raw.turns[0], replace(raw.turns[1], segments=tuple(of_ids)))))
    assert reasons(result) == [("words", "apology")]


def test_nothing_is_cut_of_a_later_failure_without_all_its_results_nor_of_a_program_beside_another() -> None:
    (raw,) = MINT.read(FORMATS["mint"]([ASK, FAIL, works(FIXED, "4.0", "sqrt it is")]), "t").trajectories
    codes = ("print(x)", "total = 2  # the corrected code")
    half, whole = (Observation("0", "NameError", "error"),), (Observation("0", "", "ok"), Observation("1", "", "ok"))
    for said, seen, left in (
        ("After fixing the error we see it. Now we show both.", half, [("words", "error"), ("unanswered", "")]),
        ("Now we show both.", whole, [("words", "fix")]),
    ):
        calls = tuple(ToolCall(str(n), "python", {"code": code}, len(said)) for n, code in enumerate(codes))
        later = Turn((Segment("sampled", said + "".join(codes)),), calls, seen, "call")
        assert reasons(Repairer()(replace(raw, turns=(*raw.turns, later)))) == left


def test_an_edit_of_words_and_program_moves_the_call_and_leaves_what_was_said_to_the_model() -> None:
    before = (
        ("sampled", "First. Second. "),
        ("observation", "a = 1  # fixed"),
        ("sampled", "Third. Fourth. a = 1  # fixed"),
    )
    words = "First. Second. Third. Fourth. "
    turn = Turn(
        tuple(Segment(kind, text) for kind, text in before),
        (ToolCall("0", "python", {"code": "a = 1  # fixed"}, len(words)),),
        (Observation("0", "1", "ok"),),
        "call",
    )
    cut = tuple((words.index(one), words.index(one) + len(one)) for one in ("Second. ", "Third. "))
    made = apply_edits(turn, Edit(0, cut), Edit(0, (), ("a = 1  # fixed", "a = 1")))
    assert [s.text for s in made.segments] == ["First. ", "a = 1  # fixed", "Fourth. a = 1"]
    assert (made.calls[0].char, made.calls[0].code) == (len("First. Fourth. "), "a = 1")
    only = apply_edits(turn, None, Edit(0, (), ("a = 1  # fixed", "a = 1")))
    assert (only.text, only.calls[0].char) == (words + "a = 1", len(words))
    whole = apply_edits(turn, Edit(0, ((0, len(words)),)), None)
    assert [s.text for s in whole.segments] == ["a = 1  # fixed", "a = 1  # fixed"]
    assert whole.calls[0].char == 0


@pytest.mark.parametrize(
    ("text", "new"),
    [
        (r'A 5" root: {"code": "a\u0023b"}', '"c"'),  # a quote before the JSON
        ('{"code": "a\\u0023b\ny"}', None),
        (r'{"code": "é a\u0023b"}', '"é c"'),
        (r'{"code": "a\u0023"}', None),
        (r'{"code": "a\x"}', None),
    ],
)
def test_a_program_in_escapes_is_found_in_text_around_it(text: str, new: str | None) -> None:
    made = rewrite(text, "a#b\ny" if "\n" in text else "a#b", "c")
    assert isinstance(made, str)
    if new is not None:
        assert made == text.partition("{")[0] + '{"code": ' + new + "}"
    else:
        assert made == ('{"code": "c"}' if "\n" in text else text)


def test_comments_of_a_shell_s_program_are_not_cut() -> None:
    steps = [ASK, fails(FAILED, "AttributeError", 2, "We take it."), works(COMMENTED, "4.0"), answer("It is 4.")]
    for name, left in (("swe_agent", [("words", "fix")]), ("mint", [])):
        record: Any = FORMATS[name](steps)
        found = Detector().format_of(record)
        assert found is not None
        (result,) = map(Repairer(state="ignore"), found.read(record, "t").trajectories)
        assert reasons(result) == left


@pytest.mark.parametrize("said", ["However, we list all squares there are.", "It lists all squares there are."])
def test_the_first_words_of_a_deep_fix_lean_on_what_is_gone(said: str) -> None:
    assert reasons(purify(ASK, FAIL, works(OTHER, "4", said)))[0] == ("words", "leans")
    result = purify(ASK, FAIL, works(OTHER, "4", f"{said} Now we take the last square."))
    assert [(cut.rule, cut.text) for cut in result.cuts][:1] == [("leans", said)]


def test_a_step_that_was_done_before_is_known_by_its_program_without_comments() -> None:
    done, failure = "half = 8 / 2\nhalf", fails("half = 8 / tow\nhalf", "NameError", 1)
    for again in ("half = 8 / 2  # Halve it.\nhalf", "# Halve it.\n" + done, "half = 8 / 2  \nhalf"):
        assert reasons(purify(ASK, works(done, "4.0"), failure, works(again, "4.0"))) == [
            ("avoided", "it had been done before the failure")
        ]


def test_a_failure_after_a_call_that_does_nothing_may_be_what_was_fixed() -> None:
    result = purify(ASK, fails("table = load('sales')\nprint(table.head())"), works("pass"), FAIL, SQRT)
    assert [(one.turn, one.reason) for one in result.left] == [(0, "unrelated")]
    assert [one.failure for one in result.splices] == [2]


def test_after_words_that_would_speak_of_it_no_later_failure_of_the_run_is_tried() -> None:
    first = replace(FAIL, output="half is 7.25\n" + FAIL.output)
    result = purify(ASK, first, FAIL, SQRT, answer("Twice 7.25 is what we want here."))
    assert [(one.turn, one.reason, one.detail) for one in result.left] == [
        (0, "words", "value: 7.25"),
        (1, "words", "value: 7.25"),
    ]


def test_what_is_left_alone_is_recorded_as_unrepaired_without_an_attempt() -> None:
    result = purify(ASK, FAIL, answer("No."))
    assert result.trajectory.turns[0].repair == RepairRecord("unrepaired", 0, reason=REASONS["answered"])
    result = purify(ASK, replace(FAIL, code=f"side = 16\n{FAIL.code}"), SQRT, works("print(side)", "16", "And now"))
    reason = f"{REASONS['state']}: side"
    assert result.trajectory.turns[0].repair == RepairRecord("unrepaired", 0, reason=reason)


def test_words_are_cut_from_the_turn_that_they_stay_of() -> None:
    halved = [replace(HALVED[0], text=f"{GONE} We take half of it."), HALVED[1]]
    result = purify(ASK, FAIL, SQRT, *halved, answer("The half is 2."))
    assert [one.shallow for one in result.splices] == [True, True]
    assert "<thought> We take half of it. </thought>" in result.trajectory.turns[1].text
    deep = purify(ASK, FAIL, works(OTHER, "4", "Sorry, an error. Now we list all squares below 81."))
    assert [one.shallow for one in deep.splices] == [False]
    assert "<thought> Now we list all squares below 81. </thought>" in deep.trajectory.turns[0].text


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        ("We write it as sqrt.<br/>{}", "The error is gone.<br/>{}"),
        ("{} We write it as sqrt.", "{}<br/>The error is gone."),
    ],
)
def test_sentences_that_touch_are_cut_both(fix: str, said: str) -> None:
    """One speaks of the failure, the other repeats what a repair removed."""
    gone = "It seems that this function has no meaning here."
    fixed, last = works(FIXED, "4.0", fix.format(gone)), answer(f"{said.format(gone)} The root of 16 is 4.")
    assert purify(ASK, FAIL, fixed, last).trajectory.turns[-1].text == "The root of 16 is 4."


@pytest.mark.parametrize(
    ("said", "was", "now"),
    [
        ("I read data.csv.", "rows = open('data.csv').raed()\nprint(rows)", "rows = open('all').read()\nprint(rows)"),
        ("I read /tmp/a.txt.", "rows = open('/tmp/a.txt').raed()\nprint(rows)", "rows = open('b').read()\nprint(rows)"),
        ("NumPy has it.", "import numpy\nv = [16, 25]\nprint(numpy.summ(v))", "v = [16, 25]\nprint(sum(v))"),
        ("It goes into `df`.", "df = list(range(5))\nprint(sm(df))", "xs = list(range(5))\nprint(sum(xs))"),
        ("I sum 'price'.", "rows = [{'price': 4}]\nprint(sm(r['price'] for r in rows))",
         "rows = [{'cost': 4}]\nprint(sum(r['cost'] for r in rows))"),
    ],
)  # fmt: skip
def test_words_that_name_what_only_the_failed_program_has_do_not_stay(said: str, was: str, now: str) -> None:
    failing, silent = fails(was, "AttributeError", 1, said), works(now, "4", "")
    named = f"name: {next(iter(names_of(was, said)))}"
    assert [(one.reason, one.detail) for one in purify(user("?"), failing, silent).left] == [("words", named)]
    right = was.replace("raed", "read").replace("summ", "sum").replace("sm", "sum")
    for asked, program in ((f"? {was}", now), ("?", right)):
        result = purify(user(asked), failing, works(program, "4", ""))
        assert [one.shallow for one in result.splices] == [True], "named before, or by the fix"
    deep = purify(user("?"), failing, works(now, "4", "We work out the rows and print all values."))
    assert [one.shallow for one in deep.splices] == [False]
    assert said not in deep.trajectory.turns[0].text
