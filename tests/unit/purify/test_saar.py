"""SAAR's rules for one call a turn, over the scripted engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from conversing import bytes_of, chat_of, ids_of
from playing import LIMITS, Play, call, play, written
from retcon.core.types import Observation, Segment, ToolCall, Turn, history_ids
from retcon.purify.saar import Saar
from retcon.purify.similarity import similarity
from retcon.purify.splice import MISPLACED, cut, purify

BAD = "print(6 * valu)"
GOOD = "print(6 * value)"
OTHER = "import math\nx = math.factorial(3)"
DONE = "It is 42."


def decisions(p: Play) -> list[str | None]:
    return [t.repair.decision if t.repair else None for t in p.turns]


def test_a_close_fix_keeps_the_reasoning_of_the_failure():
    p = play([call(BAD, "First. "), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    assert p.texts == [call(GOOD, "First. "), DONE]
    assert decisions(p) == ["shallow", None]
    turn = p.turns[0]
    assert [(s.kind, s.text) for s in turn.segments[:2]] == [
        ("sampled", "First. "),
        ("spliced", call(GOOD) + "<|im_end|>"),
    ]
    assert [o.status for o in turn.observations] == ["ok"]
    assert (turn.calls[0].char, turn.calls[0].start) == (7, 7)
    assert [written(a) for a in turn.abandoned] == [call(BAD, "First. "), call(GOOD, "Oops. ")]
    assert turn.repair.attempts == 1
    assert turn.repair.similarity == similarity(BAD, GOOD)


def test_the_sampled_part_of_a_shallow_repair_keeps_its_logprobs_and_the_spliced_part_is_scored_anew():
    p = play([call(BAD, "First. "), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    failure, fix = p.turns[0].abandoned
    kept, spliced = p.turns[0].generated
    assert kept.logprobs == failure.segments[0].logprobs[:7]
    assert spliced.logprobs != fix.segments[0].logprobs[6:]
    start = len(p.engine.seen[0][1]) + 7
    assert spliced.logprobs == asyncio.run(p.engine.score("", history_ids(p.trajectory), start))[: len(spliced.ids)]


@pytest.mark.parametrize("gamma", [0.5, 1.0], ids=["shallow", "deep"])
def test_a_repair_tells_which_weights_sampled_each_of_its_tokens(gamma):
    def sampled_by(version: int, turn: Turn) -> Turn:
        aged = [replace(s, versions=(version,) * len(s.ids)) if s.kind == "sampled" else s for s in turn.segments]
        return replace(turn, segments=tuple(aged))

    p = play([call(BAD, "First. "), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    failure, fix = p.turns[0].abandoned
    turn = purify([sampled_by(3, failure), sampled_by(4, fix)], gamma)
    of_kind = {"sampled": 3, "spliced": 4}
    assert [s.versions for s in turn.generated] == [(of_kind[s.kind],) * len(s.ids) for s in turn.generated]


@pytest.mark.parametrize(
    ("replies", "decision", "attempts"),
    [
        ([call(GOOD), call(GOOD, "Oops. ")], "shallow", 2),
        ([call(GOOD), call(OTHER), call(GOOD, "Oops. ")], "shallow", 3),
        ([call(GOOD), call(OTHER), call(BAD)], "unrepaired", 3),
    ],
    ids=["at once", "with another in between", "never"],
)
def test_a_fix_that_is_to_be_agreed_on_has_the_output_of_another_attempt(replies, decision, attempts):
    p = play([call(BAD, "First. "), *replies, DONE], {BAD: "error", OTHER: ("6", "ok", None)}, repair=Saar(agree=2))
    assert (decisions(p)[0], p.turns[0].repair.attempts) == (decision, attempts)
    second = p.engine.seen[2][1]
    assert p.engine.seen[1][1] == second, "an attempt that worked is not shown to the one that is to agree with it"


def test_a_call_without_reasoning_is_replaced_whole():
    p = play([call(BAD), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    assert [(s.kind, s.text) for s in p.turns[0].generated] == [("spliced", call(GOOD) + "<|im_end|>")]


def test_without_a_fix_the_first_failure_stays_and_the_rollout_goes_on():
    tries = [f"fail({n})" for n in range(4)]
    p = play([*map(call, tries), DONE], dict.fromkeys(tries, "error"), repair=Saar(attempts=3))
    assert p.texts == [call(tries[0]), DONE]
    assert decisions(p) == ["unrepaired", None]
    assert p.turns[0].repair.reason == "no attempt worked"
    assert p.tool.executed == tries
    assert [written(a) for a in p.turns[0].abandoned] == [call(t) for t in tries[1:]]
    assert (p.trajectory.failures, p.trajectory.raw_failures, p.trajectory.raw_calls) == (1, 4, 4)
    assert "fail(1)" not in p.prompt(4)


def test_an_answer_that_did_not_see_the_whole_history_is_not_committed():
    replies = [call("fail(0)"), call("fail(1)"), "A guess.", DONE]
    outcomes = {"fail(0)": "error", "fail(1)": "error"}
    p = play(replies, outcomes, repair=Saar(lookahead="latest"))
    assert p.texts == [call("fail(0)"), DONE]
    assert decisions(p) == ["unrepaired", None]
    assert p.turns[0].repair.reason == "the answer does not follow from the failure"
    assert [written(a) for a in p.turns[0].abandoned] == [call("fail(1)"), "A guess."]


def test_an_answer_that_takes_too_many_turns_is_not_committed():
    limits = replace(LIMITS, max_turns=1)
    p = play([call(BAD), DONE], {BAD: "error"}, repair=Saar(), limits=limits)
    assert p.texts == [call(BAD)]
    assert decisions(p) == ["unrepaired"]
    assert p.turns[0].repair.reason == "the answer does not fit"
    assert p.trajectory.stop == "turns"


def test_a_turn_that_the_infrastructure_hit_is_neither_a_failure_nor_a_fix():
    hit = turn(GOOD, "infrastructure", start=4)
    both = replace(hit, observations=(Observation("0", "", "error"), *hit.observations))
    assert not Saar().failed(both)

    class Lookahead:
        async def attempt(self, shown):
            return hit

        def fits(self, *turns):
            return True

    failure = turn(BAD, "error", start=4)
    (committed,) = asyncio.run(Saar(attempts=2).repair(failure, Lookahead()))
    assert committed.raw() == (failure, hit, hit)
    assert committed.repair.decision == "unrepaired"


@pytest.mark.parametrize("status", ["timeout", "limit", "malformed"])
def test_what_starts_no_repair_is_no_fix_either(status):
    only_errors = Saar(failures=frozenset({"error"}))
    replies = [call(BAD), call("slow()"), call(GOOD), call("slow()"), DONE]
    p = play(replies, {BAD: "error", "slow()": status}, repair=only_errors)
    assert p.texts == [call(GOOD), call("slow()"), DONE]
    assert (decisions(p), p.turns[0].repair.attempts) == (["shallow", None, None], 2)


@pytest.mark.parametrize("second", [call("lost()"), ConnectionError("gone")])
def test_a_failure_of_the_infrastructure_in_the_lookahead_ends_the_rollout(second):
    p = play([call(BAD), second, call(GOOD)], {BAD: "error", "lost()": "infrastructure"}, repair=Saar())
    assert p.trajectory.stop == "infrastructure"
    assert p.texts == [call(BAD)]
    assert decisions(p) == ["unrepaired"]
    assert [written(a) for a in p.turns[0].abandoned] == ([second] if isinstance(second, str) else [])


def test_without_room_for_another_attempt_the_failure_stays():
    used = len(history_ids(play([call(BAD), DONE], {BAD: "error"}).trajectory)) - len(DONE) - 1
    limits = replace(LIMITS, max_tokens=used + 20, lookahead_tokens=0)
    p = play([call(BAD), "x" * 30, "y" * 30, DONE], {BAD: "error"}, repair=Saar(attempts=2), limits=limits)
    assert decisions(p) == ["unrepaired", None]
    assert [a.stop for a in p.turns[0].abandoned] == ["length", "length"]
    assert p.engine.seen[1][1] == p.engine.seen[2][1]  # what was cut off is not shown
    p = play([call(BAD)], {BAD: "error"}, repair=Saar(), limits=replace(LIMITS, max_tokens=used, lookahead_tokens=0))
    assert decisions(p) == ["unrepaired"]
    assert p.turns[0].repair.reason == "no budget for another attempt"
    assert p.turns[0].abandoned == ()
    assert p.trajectory.stop == "length"


def test_an_attempt_is_made_as_long_as_there_is_room_for_a_token():
    replies = [call(BAD), call(GOOD), DONE]
    roomy = play(replies, {BAD: "error"}, repair=Saar())
    shown = len(roomy.engine.seen[1][1])  # what the attempt was sampled after
    for room in (0, 1):
        limits = replace(LIMITS, max_tokens=shown, lookahead_tokens=room)
        p = play(replies, {BAD: "error"}, repair=Saar(attempts=1), limits=limits)
        repair = p.turns[0].repair
        assert (repair.decision, repair.attempts) == ("unrepaired", room)


@pytest.mark.parametrize(
    ("lookahead", "second", "third"), [("all", [0, 1], [0, 1, 2]), ("first", [0], [0]), ("latest", [1], [2])]
)
def test_the_lookahead_shows_all_attempts_the_first_or_the_latest(lookahead, second, third):
    tries = [f"fail({n})" for n in range(3)]
    p = play([*map(call, tries), call(GOOD), DONE], dict.fromkeys(tries, "error"), repair=Saar(lookahead=lookahead))
    assert [[n for n in range(3) if tries[n] in p.prompt(at)] for at in (1, 2, 3)] == [[0], second, third]
    assert p.texts == [call(GOOD), DONE]


def test_an_answer_cut_off_is_no_answer():
    p = play([call(BAD), "x" * 100, call(GOOD), DONE], {BAD: "error"}, repair=Saar(), max_tokens=60)
    assert p.texts == [call(GOOD), DONE]
    assert [a.stop for a in p.turns[0].abandoned] == ["call", "length", "call"]


def test_an_answer_after_one_that_was_cut_off_keeps_the_record_of_both():
    p = play([call(BAD), "x" * 100, DONE], {BAD: "error"}, repair=Saar(), max_tokens=60)
    assert p.texts == [call(BAD), DONE]
    assert decisions(p) == ["answered", None]
    assert [a.text for a in p.turns[0].raw()] == [p.turns[0].text, "x" * 60]


def test_an_answer_that_saw_the_first_failure_alone_is_committed_after_it_alone():
    replies = [call("fail(0)"), call("fail(1)"), "x" * 100, DONE]
    p = play(replies, dict.fromkeys(["fail(0)", "fail(1)"], "error"), repair=Saar(lookahead="first"), max_tokens=60)
    assert p.texts == [call("fail(0)"), DONE]
    assert p.engine.seen[3][1] == history_ids(p.trajectory)[: len(p.engine.seen[3][1])]
    assert decisions(p) == ["answered", None]
    assert [written(a) for a in p.turns[0].raw()] == [call("fail(0)"), call("fail(1)"), "x" * 60]


def test_the_record_of_an_answer_is_in_the_order_of_sampling():
    replies = [call(BAD), call("fail(1)"), "x" * 100, DONE]
    p = play(replies, {BAD: "error", "fail(1)": "error"}, repair=Saar(), max_tokens=60)
    assert p.texts == [call(BAD), call("fail(1)"), DONE]
    assert decisions(p) == ["answered", "answered", None]
    assert [t.repair.attempts for t in p.turns[:2]] == [3, 0]
    assert [t.repair.reason for t in p.turns[:2]] == ["", "followed by a cut attempt"]
    assert [written(a) for t in p.turns for a in t.raw()] == [call(BAD), call("fail(1)"), "x" * 60, DONE]


def turn(code: str, status: str, *, start: int | None, ids: bool = True, reasoning: str = "so: ") -> Turn:
    text = call(code, reasoning)
    written = Segment("sampled", text, tuple(text.encode()) if ids else None)
    made = ToolCall("0", "python", {"code": code}, char=len(reasoning), start=start)
    return Turn((written,), (made,), (Observation("0", "", status),), "call")


@pytest.mark.parametrize(("failed_at", "fixed_at"), [(None, 4), (4, None)])
def test_a_call_that_does_not_begin_on_a_token_boundary_makes_the_repair_deep(failed_at, fixed_at):
    fixed = purify([turn(BAD, "error", start=failed_at), turn(GOOD, "ok", start=fixed_at)], 0.5)
    assert fixed.repair.decision == "deep"
    assert "token boundary" in fixed.repair.reason
    assert fixed.repair.similarity > 0.5
    assert fixed.text == call(GOOD, "so: ")


def gpt_oss(code: str, thought: str) -> str:
    """A call of gpt-oss: the turn's first message, which the template opens, or one of its own after the thought."""
    analysis = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant" if thought else ""
    message = f'{{"code": "{code}"}}'
    return f"{analysis}<|channel|>commentary to=functions.python <|constrain|>json<|message|>{message}<|call|>"


@pytest.mark.parametrize(
    ("failed", "fixed", "kept", "reason"),
    [
        ("First.", "Oops.", "First.", ""),
        ("", "", "", ""),
        ("First.", "", "", MISPLACED),
        ("", "Oops.", "Oops.", MISPLACED),
    ],
)
def test_a_call_that_opens_a_message_takes_the_place_of_one_that_does(failed: str, fixed: str, kept: str, reason: str):
    """Else the turn would have its message opened twice, or not at all."""
    replies = [gpt_oss(BAD, failed), gpt_oss(GOOD, fixed), "<|channel|>final<|message|>It is 42."]
    p = play(replies, {BAD: "error"}, repair=Saar(), style="chat_templates:GPT_OSS", tokenizer=bytes_of("harmony"))
    assert p.turns[0].text == gpt_oss(GOOD, kept)
    assert (p.turns[0].repair.decision, p.turns[0].repair.reason) == ("deep" if reason else "shallow", reason)


@pytest.mark.parametrize(
    ("words", "decision"), [("Let me see.", "deep"), ("Let me see.\n", "shallow"), ("", "shallow")]
)
def test_a_call_that_is_a_bare_object_is_one_only_at_the_beginning_of_a_line(words: str, decision: str):
    """Else what is learnt, after a call that begins with a tag, would be read as an answer."""
    bad, good = (f'{{"name": "python", "parameters": {{"code": "{code}"}}}}' for code in (BAD, GOOD))
    replies = [f"{words}<|python_tag|>{bad}", good, DONE]
    p = play(replies, {BAD: "error"}, repair=Saar(), chat=chat_of("bare", None))
    turn = p.turns[0]
    assert turn.repair.decision == decision
    again = chat_of("bare").parse(ids_of(turn.generated), prefix="")
    assert [(c.char, c.start, c.code) for c in again.calls] == [(c.char, c.start, c.code) for c in turn.calls]


def test_the_failure_is_compared_with_its_fix_and_not_the_other_way_round():
    """The ratio is not symmetric (the documentation of difflib has this pair)."""
    assert similarity("tide", "diet") == 0.25
    assert similarity("diet", "tide") == 0.5
    failure, fix = turn("tide", "error", start=4), turn("diet", "ok", start=4)
    assert purify([failure, fix], 0.5).repair.similarity == 0.25
    assert purify([fix, failure], 0.5).repair.similarity == 0.5


def test_a_fix_may_have_a_call_that_does_nothing_beside_one_that_does_something():
    both = call("pass", "Two. ") + "\n" + call(GOOD)
    nothing = call("pass") + "\n" + call("# later")
    p = play([call(BAD), nothing, both, DONE], {BAD: "error"}, repair=Saar())
    assert [c.code for c in p.turns[0].calls] == ["pass", GOOD]
    assert len(p.turns[0].abandoned) == 3


def test_text_without_ids_is_spliced_by_characters():
    failure = turn(BAD, "error", start=None, ids=False, reasoning="first: ")
    fixed = purify([failure, turn(GOOD, "ok", start=None, ids=False)], 0.5)
    assert fixed.repair.decision == "shallow"
    assert [(s.kind, s.text, s.ids) for s in fixed.segments] == [
        ("sampled", "first: ", None),
        ("spliced", call(GOOD), None),
    ]
    assert (fixed.calls[0].char, fixed.calls[0].start) == (7, None)


def test_a_failure_without_ids_and_a_fix_with_them_have_no_place_among_the_ids():
    fixed = purify([turn(BAD, "error", start=None, ids=False), turn(GOOD, "ok", start=4)], 0.5)
    assert (fixed.repair.decision, [c.start for c in fixed.calls]) == ("shallow", [None])


def test_what_was_written_in_several_segments_is_cut_where_the_call_begins():
    parts = [
        Segment("sampled", "ab", (1,), (-0.1,), (5,)),
        Segment("sampled", "cde", (2, 3), (-0.2, -0.3), (5, 6)),
        Segment("sampled", "fgh", (4, 5, 6), (-0.4, -0.5, -0.6), (6, 6, 7)),
        Segment("sampled", "ij", (7,), (-0.7,), (7,)),
    ]
    before, after = cut(parts, ToolCall("0", "python", {"code": "gh"}, char=6, start=4))
    assert before == [*parts[:2], Segment("sampled", "f", (4,), (-0.4,), (6,))]
    assert after == [Segment("sampled", "gh", (5, 6), (-0.5, -0.6), (6, 7)), parts[3]]
    texts = [Segment("sampled", text) for text in ("ab", "cde", "fgh")]
    at_border = ToolCall("0", "python", {"code": "fgh"}, char=5)
    assert cut(texts, at_border) == (texts[:2], texts[2:])


def test_a_later_call_that_is_not_at_the_border_of_a_token_has_no_place_among_the_ids():
    fix = turn(GOOD, "ok", start=4)
    within = ToolCall("1", "python", {"code": "a"}, char=9, start=None)
    fixed = purify([turn(BAD, "error", start=4), replace(fix, calls=(*fix.calls, within))], 0.5)
    assert (fixed.repair.decision, [c.start for c in fixed.calls]) == ("shallow", [4, None])


def test_all_calls_of_a_turn_must_succeed_and_are_replaced_together():
    both = call("a = 1", "Two. ") + "\n" + call(BAD)
    half = call("a = 1") + "\n" + call(BAD)
    fix = call("a = 1", "Again. ") + "\n" + call(GOOD)
    p = play([both, half, fix, DONE], {BAD: "error"}, repair=Saar())
    assert p.texts == [call("a = 1", "Two. ") + "\n" + call(GOOD), DONE]
    assert [(c.code, p.turns[0].text[c.char :].startswith("```python")) for c in p.turns[0].calls] == [
        ("a = 1", True),
        (GOOD, True),
    ]
    assert p.turns[0].repair.similarity == similarity(f"a = 1\n{BAD}", f"a = 1\n{GOOD}")
    assert [c.start for c in p.turns[0].calls] == [c.char for c in p.turns[0].calls]
    assert [[o.status for o in a.observations] for a in p.turns[0].abandoned] == [["ok", "error"]] * 2 + [["ok", "ok"]]


def test_tools_without_code_are_compared_by_their_arguments():
    def search(query: str, status: str, **more: object) -> Turn:
        made = ToolCall("0", "search", {**more, "query": query}, char=0, start=0)
        return Turn((Segment("sampled", query, (1,)),), (made,), (Observation("0", "", status),), "call")

    query = "gcd of two numbers"
    assert purify([search(query, "error"), search(query + "?", "ok")], 0.5).repair.decision == "shallow"
    assert purify([search(query, "error"), search("X" * 40, "ok")], 0.5).repair.decision == "deep"
    ordered = [search(query, "error", top=1, language="en"), search(query, "ok", language="en", top=1)]
    assert purify(ordered, 0.5).repair.similarity == 1.0  # the order of arguments is nothing


def test_a_turn_that_was_judged_is_not_judged_again():
    tries = ["fail(0)", "fail(1)"]
    p = play([*map(call, tries), DONE], dict.fromkeys(tries, "error"), repair=Saar(attempts=1))
    assert not any(Saar().failed(t) for t in p.turns)
    assert Saar().failed(p.turns[0].raw()[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attempts": -1}, "attempts must be 0 or more"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\]"),
        ({"lookahead": "last"}, "'all', 'first' or 'latest'"),
        ({"failures": frozenset({"eror"})}, "did you mean 'error'"),
        ({"failures": frozenset({"infrastructure"})}, "'infrastructure' never counts"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=message):
        Saar(**wrong)
    assert Saar(gamma=0.0) != Saar(gamma=1.0), "both bounds are settings"
