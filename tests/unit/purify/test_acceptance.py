"""SAAR's acceptance table, one row a test, over the scripted engine and scripted tools.

A turn is (reasoning, code, outcome). Further rules of SAAR are tested in test_saar.py, those of state in
test_rollout_state.py.
"""

from __future__ import annotations

import asyncio
import difflib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playing import CALL, LIMITS, TASK, Play, call, hermes_call, play, run_python, written
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import SandboxUnavailable
from retcon.core.types import Turn, history_ids, to_sample
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.purify.saar import Saar
from retcon.purify.similarity import similarity
from retcon.rollout.context import RolloutContext, RolloutLimits, is_purified
from retcon.rollout.group import rollout_group
from retcon.sandbox.types import Result
from retcon.tools.kinds.python import PythonTool
from retcon.tools.scripted import ScriptedSessions, ScriptedTool
from scripts import FINE, OUTCOMES, Script, calls, limits, plays, repairs, scripts

BAD = "print(6 * valu)"
GOOD = "print(6 * value)"
OTHER = "import math\nx = math.factorial(3)"
DONE = "It is 42."


def decisions(p: Play) -> list[str | None]:
    return [t.repair.decision if t.repair else None for t in p.turns]


def statuses(turn: Turn) -> list[str]:
    return [o.status for o in turn.observations]


@given(scripts(st.one_of(calls(FINE), st.just("x" * 300))), repairs, limits)
def test_01_no_failure_gives_identical_ids_mask_and_random_stream(script: Script, repair: Saar, limit: RolloutLimits):
    off, on = (play(script, OUTCOMES, repair=r, limits=limit, max_tokens=200) for r in (None, repair))
    assert on.trajectory == replace(off.trajectory, provenance=on.trajectory.provenance)
    assert to_sample(on.trajectory) == to_sample(off.trajectory)
    assert (on.engine.seen, on.engine.params, on.engine.scored) == (off.engine.seen, off.engine.params, [])


def test_02_failure_then_one_token_fix_is_shallow():
    p = play([call(BAD, "First. "), call(GOOD, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    assert p.texts == [call(GOOD, "First. "), DONE]
    assert decisions(p) == ["shallow", None]
    assert [(s.kind, s.text) for s in p.turns[0].generated] == [
        ("sampled", "First. "),
        ("spliced", call(GOOD) + "<|im_end|>"),
    ]
    assert statuses(p.turns[0]) == ["ok"]
    assert [written(a) for a in p.turns[0].abandoned] == [call(BAD, "First. "), call(GOOD, "Oops. ")]
    assert (p.turns[0].repair.attempts, p.turns[0].repair.similarity) == (1, similarity(BAD, GOOD))


def test_03_failure_then_disjoint_rewrite_is_deep():
    p = play([call(BAD, "First. "), call(OTHER, "Oops. "), DONE], {BAD: "error"}, repair=Saar())
    assert p.texts == [call(OTHER, "Oops. "), DONE]
    assert decisions(p) == ["deep", None]
    assert p.turns[0].repair.reason == "similarity below gamma"
    assert [s.kind for s in p.turns[0].generated] == ["spliced"]


@pytest.mark.parametrize("write", [call, hermes_call])
def test_04_a_disjoint_fix_of_40_characters_is_deep_whatever_wraps_it(write):
    first, fix = "q" * 40, "z" * 40
    wrapped = similarity(hermes_call(first), hermes_call(fix))
    assert wrapped > 0.5 > similarity(first, fix) == 0
    style = "hermes" if write is hermes_call else "markdown"
    p = play([write(first), write(fix), DONE], {first: "error"}, repair=Saar(), style=style)
    assert decisions(p) == ["deep", None]
    assert p.turns[0].repair.similarity == 0


def test_05_a_similarity_of_exactly_gamma_is_shallow():
    first, fix = "aabb", "aacc"
    assert similarity(first, fix) == 0.5
    at, above = (play([call(first), call(fix), DONE], {first: "error"}, repair=Saar(gamma=g)) for g in (0.5, 0.51))
    assert decisions(at) == ["shallow", None]
    assert decisions(above) == ["deep", None]


@pytest.mark.parametrize("swapped", [False, True])
def test_06_2_kb_of_code_with_small_edits_is_shallow_either_way_round(swapped):
    lines = ["a = a * b + c % 7"] * 110
    first, fix = "\n".join(lines), "\n".join(["a = b", *lines[:20], "b = a + c % 7", *lines[21:], "a * 7"])
    first, fix = (fix, first) if swapped else (first, fix)
    assert len(first) > 1900
    assert difflib.SequenceMatcher(None, first, fix).ratio() < 0.1, "autojunk would make it deep"
    p = play([call(first), call(fix), DONE], {first: "error"}, repair=Saar(), limits=RolloutLimits(20_000, 6, 20_000),
             max_tokens=5000)  # fmt: skip
    assert decisions(p) == ["shallow", None]


def test_07_after_two_failures_the_fix_is_compared_with_the_first():
    second = OTHER + "\ny"
    p = play([call(BAD), call(second), call(OTHER), DONE], {BAD: "error", second: "error"}, repair=Saar())
    assert similarity(second, OTHER) > 0.5 > similarity(BAD, OTHER)
    assert decisions(p) == ["deep", None]
    assert (p.turns[0].repair.similarity, p.turns[0].repair.attempts) == (similarity(BAD, OTHER), 2)


def test_08_the_reasoning_of_a_deep_repair_is_of_the_generation_that_made_its_code():
    second = OTHER + "\ny"
    replies = [call(BAD, "First. "), call(second, "Second. "), call(OTHER, "Third. "), DONE]
    p = play(replies, {BAD: "error", second: "error"}, repair=Saar())
    assert p.texts == [call(OTHER, "Third. "), DONE]


@pytest.mark.parametrize("attempts", [1, 3])
def test_09_k_failures_commit_the_first_after_1_plus_k_executions(attempts):
    tries = [f"fail({n})" for n in range(attempts + 1)]
    p = play([*map(call, tries), DONE], dict.fromkeys(tries, "error"), repair=Saar(attempts=attempts))
    raw = play([call(tries[0]), DONE], {tries[0]: "error"})
    assert p.tool.executed == tries
    assert history_ids(p.trajectory) == history_ids(raw.trajectory)  # as it happened: no text is invented
    assert decisions(p) == ["unrepaired", None]
    assert [written(a) for a in p.turns[0].abandoned] == [call(t) for t in tries[1:]]


def test_10_after_an_unrepaired_turn_the_next_failure_is_repaired():
    tries = ["fail(0)", "fail(1)", BAD]
    p = play([*map(call, tries), call(GOOD), DONE], dict.fromkeys(tries, "error"), repair=Saar(attempts=1))
    assert p.texts == [call("fail(0)"), call(GOOD), DONE]
    assert decisions(p) == ["unrepaired", "shallow", None]


def test_11_an_answer_in_the_lookahead_commits_the_raw_history_on_policy():
    p = play([call("fail(0)"), call("fail(1)"), DONE], {"fail(0)": "error", "fail(1)": "error"}, repair=Saar())
    assert p.texts == [call("fail(0)"), call("fail(1)"), DONE]
    assert decisions(p) == ["answered", None, None]
    assert p.trajectory.stop == "answer"
    assert {s.kind for t in p.turns for s in t.generated} == {"sampled"}
    assert [ids for _, ids in p.engine.seen] == [history_ids(p.trajectory)[: len(ids)] for _, ids in p.engine.seen]
    sample = to_sample(p.trajectory)
    fresh = (0.0, *asyncio.run(p.engine.score("", sample.ids, 1)))
    assert sample.logprobs == tuple(lp if m else None for lp, m in zip(fresh, sample.mask, strict=True))
    assert p.engine.scored[:-1] == []  # nothing had to be scored anew


def test_12_a_malformed_call_in_the_lookahead_uses_one_retry():
    unclosed = "```python\nprint(1"
    p = play([call(BAD), unclosed, call(GOOD), DONE], {BAD: "error"}, repair=Saar(attempts=2))
    assert decisions(p) == ["shallow", None]
    assert [statuses(a) for a in p.turns[0].abandoned] == [["error"], ["malformed"], ["ok"]]
    p = play([call(BAD), unclosed, DONE], {BAD: "error"}, repair=Saar(attempts=1))
    assert decisions(p) == ["unrepaired", None]


@pytest.mark.parametrize("max_turns", [1, 2, 3])
@pytest.mark.parametrize("fixed", [True, False])
def test_13_a_turn_limit_in_the_lookahead_never_leaves_a_call_without_an_observation(max_turns, fixed):
    before = [call("go")] * (max_turns - 1)
    replies = [*before, call(BAD), call("fail(1)"), call(GOOD if fixed else BAD)]
    p = play(replies, {BAD: "error", "fail(1)": "error"}, repair=Saar(attempts=2),
             limits=replace(LIMITS, max_turns=max_turns))  # fmt: skip
    assert p.trajectory.stop == "turns"
    assert decisions(p) == [None] * (max_turns - 1) + ["shallow" if fixed else "unrepaired"]
    for turn in p.turns:
        for attempt in (turn, *turn.abandoned):
            assert [o.call_id for o in attempt.observations] == [c.id for c in attempt.calls] != []
    assert p.trajectory.text.endswith("<|im_end|>\n<|im_start|>assistant\n")  # after an observation


def test_14_failing_code_that_prints_success_is_a_failure():
    p = play([call(BAD), call(GOOD), DONE], {BAD: ("Tool call success", "error", "NameError")}, repair=Saar())
    assert p.texts == [call(GOOD), DONE]


def test_15_a_success_whose_output_mentions_an_error_is_a_success():
    said = "Traceback (most recent call last):\nNameError: name 'x' is not defined"
    p = play([call(GOOD), DONE], {GOOD: (said, "ok", None)}, repair=Saar())
    assert decisions(p) == [None, None]
    p = play([call(BAD), call(GOOD), DONE], {BAD: "error", GOOD: (said, "ok", None)}, repair=Saar())
    assert decisions(p) == ["shallow", None]


def test_16_exit_0_without_output_is_a_success():
    p = play([call(GOOD), DONE], {GOOD: ("", "ok", None)}, repair=Saar())
    assert decisions(p) == [None, None]
    p = play([call(BAD), call(GOOD), DONE], {BAD: ("", "error", None), GOOD: ("", "ok", None)}, repair=Saar())
    assert decisions(p) == ["shallow", None]


class Sandbox:
    """Gives the same result to all code, or cannot be reached."""

    def __init__(self, result: Result | None) -> None:
        self.result = result

    async def run(self, code: str, **how: object) -> Result:
        if self.result is None:
            raise SandboxUnavailable("gone")
        return self.result


def test_17_a_sandbox_that_cannot_be_reached_is_no_failure_and_no_repair():
    p = play([call(BAD), call(GOOD)], tool=PythonTool(Sandbox(None)), repair=Saar())
    assert (p.trajectory.stop, p.trajectory.reward, p.trajectory.raw_failures) == ("infrastructure", None, 0)
    assert decisions(p) == [None]
    assert len(p.engine.seen) == 1
    p = play([call(BAD), call("lost()"), call(GOOD)], {BAD: "error", "lost()": "infrastructure"}, repair=Saar())
    assert (p.trajectory.stop, p.texts, decisions(p)) == ("infrastructure", [call(BAD)], ["unrepaired"])
    assert len(p.engine.seen) == 2


@pytest.mark.parametrize("status", ["timeout", "error", "limit"])
def test_18_whether_a_timeout_is_a_failure_is_configurable(status):
    replies, outcomes = [call(BAD), call(GOOD), DONE], {BAD: status}
    assert decisions(play(replies, outcomes, repair=Saar())) == ["shallow", None]
    p = play(replies, outcomes, repair=Saar(failures=Saar().failures - {status}))
    assert p.texts == [call(BAD), call(GOOD), DONE]
    assert decisions(p) == [None, None, None]


LONG = "".join(f"{n:>5} squared is {n * n:>7}\n" for n in range(24))


@pytest.mark.parametrize("shown", [LONG[:200], LONG[-200:], LONG[:100] + "…" + LONG[-100:], ""])
def test_19_a_success_of_600_characters_cut_on_any_side_is_a_success(shown):
    assert len(LONG) == 600
    assert decisions(play([call(GOOD), DONE], {GOOD: (shown, "ok", None)}, repair=Saar())) == [None, None]


@pytest.mark.parametrize("output_chars", [1, 24, 200, 300, 2000])
def test_19_also_where_the_python_tool_cuts_it(output_chars):
    tool = PythonTool(Sandbox(Result("ok", stdout=LONG)), output_chars=output_chars)
    assert decisions(play([call(GOOD), DONE], tool=tool, repair=Saar())) == [None, None]


def test_20_of_two_calls_one_of_which_fails_the_success_is_not_lost():
    both, outcomes = call("a = 1", "Two. ") + "\n" + call(BAD), {"a = 1": ("set", "ok", None), BAD: "error"}
    p = play([both, call(BAD), DONE], outcomes, repair=Saar(attempts=1))
    assert statuses(p.turns[0]) == ["ok", "error"]
    assert "set" in p.prompt(2)  # unrepaired: it stays in the history
    p = play([both, call("a = 1") + "\n" + call(GOOD), DONE], outcomes, repair=Saar())
    assert p.texts[0] == call("a = 1", "Two. ") + "\n" + call(GOOD)
    assert [statuses(t) for t in (p.turns[0], *p.turns[0].abandoned)] == [["ok", "ok"], ["ok", "error"], ["ok", "ok"]]
    assert p.turns[0].abandoned[0].observations[0].text == "set"
    assert (p.trajectory.raw_calls, p.trajectory.raw_failures) == (4, 1)


def test_21_a_literal_marker_in_the_reasoning_is_not_where_the_call_is_split():
    replies = [
        hermes_call(BAD, "I write <tool_call> and mean it. "),
        hermes_call(GOOD, "Not <tool_call>, but <tool_call>: "),
        DONE,
    ]
    p = play(replies, {BAD: "error"}, repair=Saar(), style="hermes")
    assert p.texts == [hermes_call(GOOD, "I write <tool_call> and mean it. "), DONE]
    assert [s.text for s in p.turns[0].generated] == [
        "I write <tool_call> and mean it. ",
        hermes_call(GOOD) + "<|im_end|>",
    ]


@pytest.mark.parametrize(("style", "marker"), [("markdown", "```python"), ("hermes", "<tool_call>")])
def test_22_a_marker_of_several_ids_is_a_clean_boundary(style, marker):
    assert len(ByteTokenizer().encode(marker)) == len(marker)
    write = CALL[style]
    p = play([write(BAD, "Lét's — "), write(GOOD, "Hm. "), DONE], {BAD: "error"}, repair=Saar(), style=style)
    assert decisions(p) == ["shallow", None]
    kept, spliced = p.turns[0].generated
    failure, fix = p.turns[0].abandoned
    at, of = failure.calls[0].start, fix.calls[0].start
    assert kept.ids == failure.generated[0].ids[:at]
    assert spliced.ids == fix.generated[0].ids[of:]
    assert ByteTokenizer().decode(kept.ids) == "Lét's — "
    assert ByteTokenizer().decode(spliced.ids).startswith(marker)


def test_23_a_fix_over_the_budget_is_no_fix():
    long = GOOD + " #" + "x" * 200
    replies = [call(BAD), call(long), call(GOOD), DONE]
    roomy = play(replies, {BAD: "error"}, repair=Saar(), limits=replace(LIMITS, max_tokens=500))
    assert roomy.texts[0] == call(long)
    tight = play(replies, {BAD: "error"}, repair=Saar(), limits=replace(LIMITS, max_tokens=250))
    assert tight.texts == [call(GOOD), DONE]
    none = play(replies, {BAD: "error"}, repair=Saar(attempts=1), limits=replace(LIMITS, max_tokens=250))
    assert none.texts[0] == call(BAD)
    assert (decisions(none)[0], none.turns[0].repair.reason) == ("unrepaired", "the fix does not fit the budget")


@given(plays())
def test_24_always_lengths_mask_spliced_ids_and_logprobs(p: Play):
    sample = to_sample(p.trajectory)
    assert len(sample.ids) == len(sample.mask) == len(sample.logprobs) == len(sample.spliced)
    kinds = [s.kind for s in p.trajectory.segments for _ in s.ids]
    assert list(sample.mask) == [int(kind in ("sampled", "spliced")) for kind in kinds]
    assert list(sample.spliced) == [int(kind == "spliced") for kind in kinds]
    assert [lp is None for lp in sample.logprobs] == [not m for m in sample.mask]
    for turn in p.turns:
        if turn.repair and turn.repair.decision in ("shallow", "deep"):
            kept = [i for s in turn.generated if s.kind == "sampled" for i in s.ids]
            spliced = [i for s in turn.generated if s.kind == "spliced" for i in s.ids]
            first, last = ([i for s in a.generated for i in s.ids] for a in (turn.abandoned[0], turn.abandoned[-1]))
            assert kept == first[: len(kept)]
            assert spliced == last[-len(spliced) :]
            assert turn.segments[len(turn.generated) :] == turn.abandoned[-1].segments[1:]
    fresh = (0.0, *asyncio.run(p.engine.score("", history_ids(p.trajectory), 1)))
    assert sample.logprobs == tuple(lp if m else None for lp, m in zip(fresh, sample.mask, strict=True))


def group(repair: Saar | None, probability: float):
    def reply(request_id: str, text: str, n: int) -> str:
        return [call(BAD, "First. "), call(GOOD), DONE, DONE][n]

    engine = ScriptedEngine(ByteTokenizer(), reply)
    tools = {"python": ScriptedTool(lambda code: ("", "error" if code == BAD else "ok", None))}
    context = RolloutContext(engine, Chat(ByteTokenizer()), tools, LIMITS, repair=repair, probability=probability)
    made = asyncio.run(rollout_group(TASK, context, count=60, seed=5, step=2, grade=lambda _, trajectory: trajectory))
    return made, (engine.seen, engine.params, engine.scored)


def test_25_p_0_is_as_if_off_and_p_0_7_is_reproducible():
    assert group(Saar(), 0.0) == group(None, 1.0)
    mixed, asked = group(Saar(), 0.7)
    assert (mixed, asked) == group(Saar(), 0.7)
    repaired = [t.turns[0].repair is not None for t in mixed]
    assert repaired == [is_purified(0.7, 5, 2, "t", n) for n in range(60)]
    assert 30 < sum(repaired) < 54


def test_26_after_two_repairs_the_next_prompt_holds_purified_text_only():
    replies = [call(BAD, "a. "), call(GOOD, "b. "), call("bad(2)", "c. "), call(OTHER, "d. "), DONE]
    p = play(replies, {BAD: "error", "bad(2)": "error"}, repair=Saar())
    assert decisions(p) == ["shallow", "deep", None]
    seen = p.prompt(4)
    assert call(GOOD, "a. ") in seen
    assert call(OTHER, "d. ") in seen
    assert not any(gone in seen for gone in (BAD, "bad(2)", "b. ", "c. ", "error"))
    assert history_ids(p.trajectory)[: len(p.engine.seen[4][1])] == p.engine.seen[4][1]


def test_27_k_0_leaves_the_rollout_raw():
    replies = [call(BAD), call(GOOD), DONE]
    off, on = play(replies, {BAD: "error"}), play(replies, {BAD: "error"}, repair=Saar(attempts=0))
    assert on.trajectory == replace(off.trajectory, provenance=on.trajectory.provenance)
    assert on.engine.params == off.engine.params
    assert asyncio.run(Saar(attempts=0).repair(on.turns[0], lookahead=None)) == (on.turns[0],)


def test_28_what_a_failed_cell_set_and_wrote_is_gone_after_the_repair():
    tool = ScriptedSessions(run_python)
    failed = "x = 1\nfiles['out.txt'] = 'a'\nx + y"
    p = play([call(failed), call("y = 2\ny"), call("files"), call("y"), call("x"), DONE, DONE], tool=tool,
             repair=Saar(attempts=1))  # fmt: skip
    assert decisions(p) == ["deep", None, None, "answered", None]
    assert [o.text for t in p.turns[:3] for o in t.observations] == ["2", "{}", "2"]  # the fix's own state stays
    assert p.turns[3].observations[0].text == "name 'x' is not defined"


@pytest.mark.parametrize("nothing", ["", "pass", "# later", '"""Later."""\npass', "..."])
def test_29_a_fix_that_does_nothing_is_no_fix(nothing):
    p = play([call(BAD), call(nothing), call(GOOD), DONE], {BAD: "error"}, repair=Saar())
    assert p.texts == [call(GOOD), DONE]
    assert p.turns[0].repair.attempts == 2
    assert call(nothing) in p.prompt(2)
    p = play([call(BAD), call(nothing), DONE], {BAD: "error"}, repair=Saar(attempts=1))
    assert p.texts == [call(BAD), DONE]
