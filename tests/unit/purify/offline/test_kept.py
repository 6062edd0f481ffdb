"""What stays after a repair does not speak of what was taken out: it is cut, or the failure is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from foreign import FAILED, FIXED, FORMATS, Step, answer, fails, user, works
from retcon.core.types import Segment
from retcon.purify.offline import UNFIT, Repairer, RepairResult
from retcon.purify.words import rewrite
from retcon.transcripts.detector import Detector
from retcon.transcripts.formats.notations import MINT

ASK = user("the root of 16?")
OTHER = "import math\nvalues = [n for n in range(9) if n * n == 16]\nroot = values[-1] * len('abc')\nprint(root)"
FAIL = fails(FAILED, "AttributeError", 2, "We take the root of it.")


def purify(*steps: Step) -> RepairResult:
    (trajectory,) = MINT.read(FORMATS["mint"](steps), "t").trajectories
    return Repairer()(trajectory)


def reasons(result: RepairResult) -> list[tuple[str, str]]:
    return [(left.reason, left.detail.partition(":")[0]) for left in result.left]


def test_the_words_of_a_deep_fix_lose_what_refers_to_the_failure() -> None:
    result = purify(ASK, FAIL, works(OTHER, "4", "Sorry, an error. Now we list all squares below 81."))
    assert [s.shallow for s in result.splices] == [False]
    assert "Sorry" not in result.trajectory.text
    assert "Now we list all squares below 81." in result.trajectory.text
    assert [(cut.rule, cut.text) for cut in result.cuts] == [("apology", "Sorry, an error.")]
    repair = result.trajectory.turns[0].repair
    assert repair is not None
    assert [cut.rule for cut in repair.cut] == ["apology"]
    assert "Sorry" in result.trajectory.turns[0].abandoned[-1].text  # raw attempts stay as they were


@pytest.mark.parametrize("words", ["Sorry, an error.", "Let me fix that and try again."])
def test_a_deep_fix_with_no_other_words_is_left_alone(words: str) -> None:
    assert reasons(purify(ASK, FAIL, works(OTHER, "4", words)))[0][0] == "words"


def test_later_turns_lose_what_refers_to_the_failure_unless_they_would_lose_the_answer() -> None:
    fix = works(FIXED, "4.0", "sqrt it is")
    result = purify(ASK, FAIL, fix, answer("After fixing the error we see it. The root of 16 is 4."))
    assert result.trajectory.turns[-1].text == "The root of 16 is 4."
    refused = purify(ASK, FAIL, fix, answer("After fixing the error, the answer is 4. So much for roots of it."))
    assert reasons(refused) == [("words", "error")]
    assert not refused.cuts


@pytest.mark.parametrize("shown", ["```python\n{}\n```\n", "<solution>\n{}\n</solution>"], ids=["fenced", "solution"])
def test_a_program_in_an_answer_keeps_all_of_its_lines(shown: str) -> None:
    fix = works(FIXED, "4.0", "sqrt it is")
    said = "We hand in this one. " + shown.format("fixed = text.strip()\nraise ValueError(fixed)")
    result = purify(ASK, FAIL, fix, answer(f"{said} That corrected code reads them."))
    assert said.strip() in result.trajectory.turns[-1].text
    assert [cut.text for cut in result.cuts] == ["That corrected code reads them."]
    commented = answer("We hand in this one. " + shown.format("root(16)  # the corrected code"))
    assert reasons(purify(ASK, FAIL, fix, commented)) == [("words", "fix")]
    solved = answer("We hand in this one. <solution> the corrected code of it </solution>")
    assert reasons(purify(ASK, FAIL, fix, solved)) == [("words", "fix")]


def test_a_failure_that_stays_and_a_user_are_something_to_refer_to() -> None:
    fix = works(FIXED, "4.0", "sqrt it is")
    sorry = answer("Sorry for the error. The root of 16 is 4.")
    unclear = works("import traceback\ntraceback.print_exc()", fails("").output)
    for between in (user("that is wrong"), fails("f(", "NameError", 1, "And now we go on to the next."), unclear):
        result = purify(ASK, FAIL, fix, between, sorry)
        assert result.splices
        assert "Sorry for the error." in result.trajectory.turns[-1].text


@pytest.mark.parametrize(("words", "cut"), [("This handles the odd case.", True), ("This handles the rest.", False)])
def test_five_words_that_went_are_cut_where_they_are_said_once_more(words: str, cut: bool) -> None:
    result = purify(ASK, FAIL, works(FIXED, "4.0", f"We take it. {words}"), answer(f"{words} The root of 16 is 4."))
    assert [one.rule for one in result.cuts] == ["repeated"] * cut
    assert (words in result.trajectory.turns[-1].text) is not cut


def test_a_value_that_only_the_removed_output_had_is_missed() -> None:
    failure = replace(FAIL, output="half is 12.345\n" + FAIL.output)
    fix = works(FIXED, "4.0", "sqrt it is")
    assert reasons(purify(ASK, failure, fix, answer("Twice 12.345 is what we want here."))) == [("words", "value")]
    assert purify(ASK, failure, works(FIXED, "12.345"), answer("Twice 12.345 is what we want here.")).splices


def test_a_number_of_the_words_that_only_the_failed_program_had_is_missed() -> None:
    failure = replace(FAIL, text="We take all below 21.9 of it.", code=FAILED + "\nsmall = root < 21.9\nprint(small)")
    other = works(FIXED + "\nsmall = root <= 10\nprint(small)", "4.0\nTrue")
    assert [(one.reason, one.detail) for one in purify(ASK, failure, other).left] == [("words", "value: 21.9")]
    assert purify(user("the root of 16, below 21.9?"), failure, other).splices
    assert purify(ASK, failure, works(FIXED + "\nsmall = root < 21.9\nprint(small)", "4.0\nTrue")).splices
    assert purify(ASK, replace(failure, text="We take all below it."), other).splices


def test_the_words_of_a_plan_that_an_assertion_refutes_go() -> None:
    code = "def twice(n):\n    return n + {}\n\nassert twice(4) == 8"
    failure = fails(code.format(2), "AssertionError", 4, "We add two to the number to double it.")
    for words in ("", "Oops, that was wrong."):
        assert reasons(purify(ASK, failure, works(code.format("n"), "ok", words))) == [("plan", "an assertion failed")]
    result = purify(ASK, failure, works(code.format("n"), "ok", "Oops, that was wrong. We add the number to itself."))
    assert [splice.shallow for splice in result.splices] == [False]
    turn = result.trajectory.turns[0]
    assert "We add the number to itself." in turn.text
    assert "Oops" not in turn.text
    assert "We add two" not in turn.text
    assert turn.repair is not None
    assert (turn.repair.decision, turn.repair.reason) == ("deep", UNFIT)
    assert turn.repair.similarity is not None
    assert turn.repair.similarity > 0.9
    assert [cut.rule for cut in turn.repair.cut] == ["apology"]


def test_a_fix_that_tells_no_more_than_what_it_changed_does_not_stand_for_a_plan() -> None:
    code = (
        "def isPrime(n):\n    # one has no twins\n    return n > {} and n % 2\n\nfound = isPrime(1)\nassert not found"
    )

    def made(plan: str, words: str) -> list[tuple[int, str]]:
        failure = fails(code.format(0), "AssertionError", 6, plan)
        result = purify(ASK, failure, works(code.format(1), "ok", words))
        assert all(not splice.shallow for splice in result.splices)
        return [(one.turn, one.reason) for one in result.left]

    assert made("We see whether it is prime by its last digit.", "The number shall be above one now.") == [(0, "plan")]
    assert made("We see whether it is prime by its last digit.", "PRIMES are all above the number one.") == []
    # What was tried after it stands beside the words of the plan, and the same words tell enough.
    first, second = (fails(code.format(n), "AssertionError", 6, said) for n, said in (
        (0, "We see whether it is prime by its last digit."), ("False", "Sorry, that was an error. We count on."),
    ))  # fmt: skip
    result = purify(ASK, first, second, works(code.format(1), "ok", "The number shall be above one now."))
    assert [(one.turn, one.reason) for one in result.left] == [(0, "plan")]
    assert [(one.failure, one.shallow) for one in result.splices] == [(1, False)]
    # Words of a comment, of Python or of a sentence on the failure are no plan.
    assert made("It has no twins and we return what is left.", "The number shall be above one now.") == []
    assert made("Sorry for that error in isPrime. We look at digits.", "The number shall be above one now.") == []
    # Nor does a sentence on the failure, which is cut, tell it.
    told = "The error was in isPrime. It is a number above one that we want."
    assert made("We see whether it is prime by its last digit.", told) == [(0, "plan")]


def test_a_run_of_which_more_would_be_repaired_the_next_time_stays_whole() -> None:
    code = "def twice(n):\n    return n + {}\n\nassert twice(4) == 8"
    planned = fails(code.format(2), "AssertionError", 4, "We add two to the number to double it.")
    second = fails(code.format("m"), "NameError", 2, "We add the number to itself.")
    other = fails("a = 1\nprint(b)", "NameError", 2, "We show what is there.")
    # Its fix has no words of its own to stand for the plan; once it has those of the second failure, they could.
    steps = (ASK, planned, second, works(code.format("n"), "ok", ""), answer("Four doubled is 8."))
    result = purify(*steps, user("And a?"), other, works("b = 1\nprint(b)", "1"), answer("It is 1."))
    assert reasons(result) == [("unsettled", "")] * 2
    assert [(splice.failure, splice.fix) for splice in result.splices] == [(4, 5)]
    before = purify(ASK, other, works("b = 1\nprint(b)", "1"), user("And four?"), *steps[1:])
    assert ([splice.failure for splice in before.splices], reasons(before)) == ([0], [("unsettled", "")] * 2)
    assert purify(ASK, second, *steps[3:]).splices
    own = works(code.format("n"), "ok", "The number is added to itself.")
    assert [splice.failure for splice in purify(*steps[:3], own, *steps[4:]).splices] == [0]


def test_the_words_of_a_retry_that_speak_of_the_failure_before_it_go() -> None:
    first = fails("table = load('sales')\nprint(table.head())", said="We load the table.")
    retry = replace(FAIL, text="Sorry for that, we take the root of it.")
    result = purify(ASK, first, retry, works(FIXED, "4.0", "We take the root of 16 by its name."))
    assert [(splice.failure, splice.shallow) for splice in result.splices] == [(1, False)]
    assert "Sorry" not in result.trajectory.text
    assert [reason for reason, _ in reasons(purify(ASK, first, retry, works(FIXED, "4.0", "So.")))] == [
        "unrelated",
        "retry",
    ]


@pytest.mark.parametrize(
    ("fix", "output", "reason"),
    [
        ("root = 4\nprint(root)", "4", "constant"),
        ("def root_of(n):\n    import math\n    root = math.sqrt(n)\n    return root\n", "", "unexecuted"),
        (FIXED, "Error: the root could not be taken", "end"),
    ],
)
def test_a_fix_that_lost_the_plan_runs_nothing_or_fails_too_is_none(fix: str, output: str, reason: str) -> None:
    failure = "def root_of(n):\n    import math\n    root = math.sqroot(n)\n    return root\nroot_of(16)"
    first = fails(failure, "AttributeError", 5) if reason == "unexecuted" else FAIL
    assert reasons(purify(ASK, first, works(fix, output)))[0][0] == reason


def test_words_with_ids_or_of_a_failure_that_stays_are_never_cut() -> None:
    fix, said = works(FIXED, "4.0", "sqrt it is"), "After fixing the error we see it. The root of 16 is 4."
    assert [cut.text for cut in purify(ASK, FAIL, fix, answer(said)).cuts] == ["After fixing the error we see it."]
    (raw,) = MINT.read(FORMATS["mint"]([ASK, FAIL, fix, answer(said)]), "t").trajectories
    last = replace(raw.turns[-1], segments=(Segment("sampled", raw.turns[-1].text, (1, 2)),))
    assert reasons(Repairer()(replace(raw, turns=(*raw.turns[:-1], last)))) == [("words", "error")]
    stays = fails("f(", "NameError", 1, said)
    assert reasons(purify(ASK, FAIL, fix, stays, answer("It is 4."))) == [("words", "error"), ("answered", "")]


COMMENTED = FIXED.replace("root =", "# Fixed: sqrt instead of sqroot\nroot =")


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("inspect", "ours")])
def test_every_format_is_written_without_what_was_cut(name: str) -> None:
    shell = name == "swe_agent"  # whose comments stay, and whose effects cannot be told
    steps: Sequence[Step] = [
        ASK,
        fails(FAILED, "AttributeError", 2, "We take its root."),
        works(FIXED if shell else COMMENTED, "4.0", "Sorry. Here it is."),
        works("print(2 * root)", "8.0", "The previous error is gone. Now we double it."),
        answer("I fixed the error before. The root of 16 is 4."),
    ]
    record: Any = FORMATS[name](steps)
    found = Detector().format_of(record)
    assert found is not None
    reading = found.read(record, "t")
    results = [Repairer(state="ignore" if shell else "check")(trajectory) for trajectory in reading.trajectories]
    new = reading.with_repairs(results)
    out = msgspec.json.encode(new).decode()
    assert results[0].splices
    assert "ixed" not in out
    assert "previous error" not in out
    assert ("Now we double it." in out) is (name != "sharegpt_functions")  # which has no words beside calls
    assert "The root of 16 is 4." in out
    assert [c.code for t in results[0].trajectory.turns for c in t.calls] == [FIXED, "print(2 * root)"]
    for pair in reading.pairs(results):
        assert "Fixed" not in str(pair.chosen)
    again = found.read(new, "t").trajectories
    assert [t.text for t in again] == [r.trajectory.text for r in results]


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("anthropic", "content", "text"), ("langchain", "data.content", "text"),
        ("langchain_flat", "content", "text"), ("gemini", "parts", "text"), ("adk", "content.parts", "text"),
        ("bedrock", "content", "text"), ("atif", "message", "text"), ("responses", "content", "output_text"),
        ("responses", "summary", "summary_text"), ("openhands_sdk", "llm_message.content", "text"),
        ("messages", "content", "text"),
    ],
)  # fmt: skip
def test_words_in_several_parts_are_cut_and_other_parts_stay(name: str, words: str, kind: str) -> None:
    record: Any = FORMATS[name]([ASK, FAIL, works(FIXED, "4.0"), answer("unlike any other")])
    items = next(v for v in record.values() if isinstance(v, list) and "unlike any other" in str(v))
    *path, key = words.split(".")
    last = items[-1]
    for name_of in path:
        last = last[name_of]
    if key == "summary":
        del last["content"], last["role"]
        last["type"] = "reasoning"
    image = {"type": "image", "source": "x"}
    last[key] = [{"type": kind, "text": "That error is gone. The root "}, image, {"type": kind, "text": "of 16 is 4."}]
    found = Detector().format_of(record)
    assert found is not None
    reading = found.read(record, "t")
    (result,) = map(Repairer(), reading.trajectories)
    assert [cut.rule for cut in result.cuts] == ["error"]
    new: Any = reading.with_repairs([result])
    out = msgspec.json.encode(new).decode()
    assert "That error" not in out
    assert '{"type":"image","source":"x"}' in out
    assert found.read(new, "t").trajectories[0].text == result.trajectory.text


def test_a_comment_in_a_program_of_several_blocks_is_not_cut() -> None:
    fix = FIXED.replace("print", "</execute> and <execute>\n# Fixed: sqrt instead of sqroot\nprint")
    assert reasons(purify(ASK, FAIL, works(fix, "4.0"), answer("The root of 16 is 4."))) == [("words", "fix")]


def test_a_program_is_written_anew_at_any_depth_of_json() -> None:
    old, new = 'a = "é"\nb', 'a = "é"'
    deep = msgspec.json.encode({"code": msgspec.json.encode({"code": old}).decode()}).decode()
    assert rewrite({"x": [old, 1, deep]}, old, new) == {
        "x": [new, 1, msgspec.json.encode({"code": msgspec.json.encode({"code": new}).decode()}).decode()]
    }


def test_a_later_sentence_that_repeats_one_of_what_is_gone_is_cut() -> None:
    said = "It seems that this function has no meaning here."
    fix = works(FIXED, "4.0", f"{said} We write it as sqrt.")
    result = purify(ASK, FAIL, fix, answer(f"{said} The root of 16 is 4."))
    assert result.trajectory.turns[-1].text == "The root of 16 is 4."
    assert [(cut.rule, cut.text) for cut in result.cuts] == [("repeated", said)]
    again = works("print(2 * root)", "8.0", said)
    assert reasons(purify(ASK, FAIL, fix, again)) == [("words", "repeated")]
    assert purify(ASK, FAIL, fix, user("and again?"), again).splices


@pytest.mark.parametrize(
    "said",
    ["The updated solution ran well.", "The updated code gives it.", "As `sqrt` was not defined, we see 4 here."],
)
def test_later_words_of_what_was_mended_are_cut(said: str) -> None:
    result = purify(ASK, FAIL, works(FIXED, "4.0", "sqrt it is"), answer(f"{said} The root of 16 is 4."))
    assert result.trajectory.turns[-1].text == "The root of 16 is 4."


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_beside_the_content_is_read_and_cut_as_content_is(field: str) -> None:
    later = works("print(2 * root)", "8.0", "Now we double it.")
    record: Any = FORMATS["messages"]([ASK, FAIL, works(FIXED, "4.0", "sqrt it is"), later, answer("The root is 4.")])
    record["messages"][1][field] = "The root is what they want to have."
    record["messages"][3][field] = "Sorry, sqroot was an error of mine."
    record["messages"][5][field] = "The previous error is gone. Twice the root is next."
    found = Detector().format_of(record)
    assert found is not None
    reading = found.read(record, "t")
    (result,) = map(Repairer(), reading.trajectories)
    new: Any = reading.with_repairs([result])["messages"]  # type: ignore[index,call-overload]
    assert [m[field] for m in new if field in m] == ["The root is what they want to have.", "Twice the root is next."]
    assert [m["content"] for m in new if m["role"] == "assistant"][:2] == [
        "We take the root of it.",
        "Now we double it.",
    ]
    refused = FORMATS["messages"]([ASK, FAIL, works(FIXED, "4.0"), works("print(1)", "1", "We go on and print one.")])
    refused["messages"][5][field] = "That is what the value 12.345 was for."
    refused["messages"][2]["content"] = "12.345\n" + FAIL.output
    assert [o.reason for o in Repairer()(found.read(refused, "t").trajectories[0]).left] == ["words"]


def test_a_record_whose_reasoning_stays_is_not_touched() -> None:
    record: Any = FORMATS["messages"]([ASK, works(FIXED, "4.0", "sqrt it is"), *[FAIL] * 4])
    for message in record["messages"]:
        message["reasoning_content"] = "" if message["role"] == "user" else "We think of it."
    found = Detector().format_of(record)
    assert found is not None
    reading = found.read(record, "t")
    assert reading.with_repairs([Repairer()(t) for t in reading.trajectories]) == record


@pytest.mark.parametrize("name", ["langchain", "langchain_flat", "langchain_dumpd"])
def test_blocks_that_repeat_a_call_of_langchain_are_those_of_the_fix(name: str) -> None:
    record: Any = FORMATS[name]([ASK, FAIL, works(COMMENTED, "4.0"), answer("The root of 16 is 4.")])
    items = next(v for v in record.values() if isinstance(v, list) and "sqroot" in str(v))
    for item in items:
        inside = next((item[key] for key in ("data", "kwargs") if key in item), item)
        if calls := inside.get("tool_calls"):
            blocks = [{"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["args"]} for c in calls]
            inside["content"] = [{"type": "text", "text": inside["content"]}, *blocks]
    found = Detector().format_of(record)
    assert found is not None
    reading = found.read(record, "t")
    (result,) = map(Repairer(), reading.trajectories)
    out = msgspec.json.encode(reading.with_repairs([result])).decode()
    assert [s.shallow for s in result.splices] == [True]
    assert "sqroot" not in out
    assert "Fixed" not in out
    assert out.count('"tool_use"') == 1
    assert "We take the root of it." in out


@pytest.mark.parametrize("name", ["messages", "hermes"])
def test_a_comment_is_cut_whatever_escapes_the_program_is_written_with(name: str) -> None:
    record = FORMATS[name]([ASK, FAIL, works(COMMENTED, "4.0"), answer('So "the root" of 16 is 4.')])
    plain = msgspec.json.encode(record).decode()
    unusual = plain.replace("# Fixed", "\\\\u0023 Fixed").replace("math.sqrt", "math\\\\u002esqrt")
    found = Detector().format_of(value := msgspec.json.decode(unusual))
    assert found is not None
    reading = found.read(value, "t")
    (result,) = map(Repairer(), reading.trajectories)
    assert result.splices
    new = reading.with_repairs([result])
    assert "Fixed" not in msgspec.json.encode(new).decode()
    assert [c.code for t in found.read(new, "t").trajectories for turn in t.turns for c in turn.calls] == [FIXED]
