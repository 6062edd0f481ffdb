"""Tools that keep state: opened for a trajectory, rolled back with its history, closed with it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from playing import Play, call, hermes_call, play, run_python
from retcon.core.errors import CheckpointRefused, RecipeError
from retcon.core.types import ToolCall
from retcon.purify.kinds.branch import Branch
from retcon.purify.saar import Saar
from retcon.sandbox.types import Result
from retcon.tools.forks import ForkableTool
from retcon.tools.kinds.python import PythonSessions
from retcon.tools.scripted import ScriptedSessions, ScriptedTool

DONE = "It is 42."
BAD, GOOD = "x = 1; files['a'] = 'b'; y", "z = 42"


def sessions(broken=()) -> ScriptedSessions:
    return ScriptedSessions(run_python, broken=broken)


def test_state_lasts_from_turn_to_turn_and_ends_with_the_trajectory():
    tool = sessions()
    p = play([call("x = 1"), call("x + 1"), DONE], tool=tool)
    assert [o.status for t in p.turns for o in t.observations] == ["ok", "ok"]
    (session,) = tool.opened
    assert session.trajectory == p.trajectory.id
    assert session.events == ["run x = 1", "run x + 1", "close"]


def test_trajectories_do_not_share_state():
    tool = sessions()
    for _ in range(2):
        assert play([call("n"), call("n = 1"), DONE], tool=tool).turns[0].observations[0].error_type == "NameError"
    assert len(tool.opened) == 2


def test_a_rollout_without_a_call_opens_nothing():
    tool = sessions()
    play([DONE], tool=tool)
    play(["```python\nprint(1", DONE], tool=tool, repair=Saar(attempts=1))
    assert tool.opened == []


@pytest.mark.parametrize("repair", [None, Saar(attempts=0)])
def test_without_a_repair_nothing_is_frozen(repair):
    tool = sessions()
    play([call(BAD), call("x"), DONE], tool=tool, repair=repair)
    assert tool.opened[0].events == [f"run {BAD}", "run x", "close"]


def test_a_success_keeps_its_state_and_frees_what_was_frozen_before_it():
    tool = sessions()
    play([call("x = 1"), call("x"), DONE], tool=tool, repair=Saar())
    assert tool.opened[0].events == [
        "checkpoint 1", "run x = 1", "discard 1", "checkpoint 2", "run x", "discard 2", "close"
    ]  # fmt: skip


def test_a_fix_runs_in_the_state_before_the_failure_and_keeps_its_own():
    tool = sessions()
    p = play([call(BAD), call(GOOD), call("x"), call("z"), DONE], tool=tool, repair=Saar(attempts=1))
    first, second, _ = p.turns
    assert [o.status for t in (first, second) for a in t.raw() for o in a.observations] == ["error", "ok"] * 2
    assert second.abandoned[0].observations[0].error_type == "NameError"  # x went with the failure
    assert second.observations[0].text == "42"  # z is the fix's
    assert tool.opened[0].state == {"z": 42}


def test_each_attempt_runs_in_the_state_before_the_failure():
    tool = sessions()
    tries = ["n = 1; oops", "m = n; oops", "k = m"]
    p = play([*map(call, tries), call("n"), DONE], tool=tool, repair=Saar(attempts=2))
    assert [o.error_type for a in p.turns[0].raw() for o in a.observations] == ["NameError"] * 3
    assert "'oops'" in p.turns[0].raw()[0].observations[0].text
    assert "'n'" in p.turns[0].raw()[1].observations[0].text
    assert "'m'" in p.turns[0].raw()[2].observations[0].text


def test_an_unrepaired_turn_has_the_state_that_its_failure_left():
    tool = sessions()
    tries = ["n = 1; oops", "n = 2; oops", "n = 3; oops"]
    p = play([*map(call, tries), call("n"), DONE], tool=tool, repair=Saar(attempts=2))
    assert p.turns[1].observations[0].text == "1"
    session = tool.opened[0]
    assert session.events[:9] == [
        "checkpoint 1", f"run {tries[0]}", "checkpoint 2", "rollback 1", f"run {tries[1]}", "rollback 1",
        f"run {tries[2]}", "rollback 2", "discard 1",
    ]  # fmt: skip


def test_an_answered_turn_is_left_as_the_last_attempt_left_it():
    tool = sessions()
    p = play([call("n = 1; oops"), call("n = 2; oops"), DONE], tool=tool, repair=Saar())
    assert p.trajectory.stop == "answer"
    assert len(p.turns) == 3
    assert tool.opened[0].state == {"n": 2}


def test_no_checkpoint_is_left_over():
    tool = sessions()
    replies = [call("a = 1; oops"), call("b = 1"), call("c; d"), call("e"), call("b"), DONE]
    play(replies, tool=tool, repair=Saar(attempts=1))
    assert tool.opened[0].kept == {}


def test_a_state_that_is_that_before_a_failure_and_that_after_it_is_freed_once():
    tool = sessions()
    play(["```python\nprint(", call("a = 1"), call("a"), DONE], tool=tool, repair=Saar(attempts=1))
    freed = [event for event in tool.opened[0].events if event.startswith("discard")]
    assert freed == ["discard 1", "discard 2"]


def test_a_failure_that_reached_no_stateful_tool_is_frozen_when_an_attempt_does():
    tool = sessions()
    p = play(["```python\nprint(", call("a = 1; oops"), call("a"), call("b"), DONE], tool=tool, repair=Saar(attempts=2))
    assert [o.error_type for a in p.turns[0].raw() for o in a.observations] == [
        "MalformedCall",
        "NameError",
        "NameError",
    ]
    assert tool.opened[0].state == {}  # as the malformed call left it


def test_calls_of_a_turn_share_state_and_are_rolled_back_together():
    tool = sessions()
    p = play([call("a = 1") + "\n" + call("a; oops"), call("a"), call("b"), DONE], tool=tool, repair=Saar(attempts=1))
    assert [o.status for o in p.turns[0].observations] == ["ok", "error"]
    assert p.turns[0].abandoned[0].observations[0].error_type == "NameError"  # `a` went with its sibling
    assert tool.opened[0].state == {"a": 1}


@pytest.mark.parametrize(
    ("operation", "turns", "ran"), [("open", 0, None), ("checkpoint", 0, []), ("rollback", 1, [f"run {BAD}"])]
)
def test_a_state_that_cannot_be_had_is_a_fault_of_the_infrastructure(operation, turns, ran):
    tool = sessions([operation])
    p = play([call(BAD), call(GOOD), DONE], tool=tool, repair=Saar())
    assert (p.trajectory.stop, len(p.turns), p.trajectory.reward) == ("infrastructure", turns, None)
    assert p.engine.released == [p.trajectory.id]
    assert [t.repair.reason for t in p.turns] == ["infrastructure fault"] * turns
    if ran is not None:
        assert [e for e in tool.opened[0].events if e.startswith("run")] == ran
        assert tool.opened[0].events[-1] == "close"


def test_a_rollout_is_not_lost_to_a_session_that_cannot_be_closed():
    tool = sessions(["close"])
    p = play([call("x = 1"), DONE], tool=tool)
    assert p.trajectory.stop == "answer"


@pytest.mark.parametrize("end", [RecipeError("no such task"), asyncio.CancelledError()])
def test_a_rollout_that_fails_or_is_cancelled_closes_its_sessions(end):
    def ends(code, state):
        raise end

    tool = ScriptedSessions(ends)
    with pytest.raises(type(end)):
        play([call("x = 1")], tool=tool)
    assert tool.opened[0].events == ["run x = 1", "close"]


@pytest.mark.parametrize("lookahead", ["all", "first", "latest"])
def test_an_answer_after_what_a_session_would_not_have_said_is_not_committed(lookahead):
    """`x` has no value where the attempt runs, and has one in a session in which the failure has run before."""
    tool = sessions()
    p = play([call("x = 5; oops"), call("x"), "It is 6.", call("x"), DONE], tool=tool, repair=Saar(lookahead=lookahead))
    observed = [(o.text, o.status) for t in p.turns for o in t.observations]
    if lookahead == "first":  # and the answer has not seen the attempt
        assert p.turns[0].repair.decision == "answered"
        assert observed == [("name 'oops' is not defined", "error")]
    else:
        why = {
            "all": "the answer follows from what the tools would not have said after the failure",
            "latest": "the answer does not follow from the failure",
        }
        assert (p.turns[0].repair.decision, p.turns[0].repair.reason) == ("unrepaired", why[lookahead])
        assert observed == [("name 'oops' is not defined", "error"), ("5", "ok")]
        assert tool.opened[0].kept == {}


@pytest.mark.parametrize(
    ("again", "decision"),
    [
        (("it is y", "error", "NameError"), "answered"),
        (("it is x", "error", "NameError"), "unrepaired"),
        (("it is y", "timeout", "NameError"), "unrepaired"),
        (("it is y", "error", "KeyError"), "unrepaired"),
    ],
)
def test_to_be_told_the_same_is_the_same_text_status_and_type(again, decision):
    told = iter([("it is y", "error", "NameError"), again])

    def answer(code, state):
        return next(told) if code == "y" else ("no", "error", "NameError")

    p = play([call("oops"), call("y"), DONE, DONE], tool=ScriptedSessions(answer), repair=Saar())
    assert p.turns[0].repair.decision == decision


def test_an_answer_after_what_a_session_would_have_said_too_is_committed_and_the_session_stands_there():
    tool = sessions()
    p = play([call("x = 5; oops"), call("y"), DONE], tool=tool, repair=Saar())
    assert [t.repair.decision if t.repair else None for t in p.turns] == ["answered", None, None]
    assert [e for e in tool.opened[0].events if e.startswith("run")] == ["run x = 5; oops", "run y", "run y"]
    assert tool.opened[0].state["x"] == 5


def test_an_interpreter_that_is_gone_when_it_is_asked_again_ends_the_rollout():
    asked = []

    def answer(code, state):
        asked.append(code)
        return ("", "infrastructure", None) if asked.count("y") == 2 else run_python(code, state)

    p = play([call("x = 5; oops"), call("y"), DONE], tool=ScriptedSessions(answer), repair=Saar())
    assert (p.trajectory.stop, len(p.turns), p.turns[0].repair.decision) == ("infrastructure", 1, "unrepaired")


def closed(state):
    return "x is set" if state.get("x") else ""


def test_a_failure_whose_state_before_it_cannot_be_kept_is_not_repaired_and_the_rollout_goes_on():
    tool = ScriptedSessions(run_python, refuses=closed)
    replies = [
        call("x = 1"), call("y = 2; oops"), call("x = 0; y"), call("z = 3; oops"), call("z = 4"), call("z"), DONE,
    ]  # fmt: skip
    p = play(replies, tool=tool, repair=Saar(attempts=1))
    assert p.trajectory.stop == "answer"
    _, failed, after, fixed, last, _ = p.turns
    assert (failed.repair.decision, failed.repair.reason) == ("unrepaired", "no checkpoint: x is set")
    assert (failed.repair.attempts, failed.abandoned) == (0, ())
    assert [t.observations[0].no_checkpoint for t in p.turns[:-1]] == [None, "x is set", "x is set", None, None]
    assert (after.observations[0].text, last.observations[0].text) == ("2", "4")
    assert fixed.repair.decision != "unrepaired"
    assert tool.opened[0].kept == {}


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_failure_whose_own_state_cannot_be_kept_is_not_repaired(attempts):
    """An attempt would run in the state before it, and where none worked there were no way back."""
    tool = ScriptedSessions(run_python, refuses=closed)
    p = play([call("x = 1; oops"), call("x"), DONE], tool=tool, repair=Saar(attempts=attempts))
    failed, after, _ = p.turns
    assert (failed.repair.decision, failed.repair.reason) == ("unrepaired", "no checkpoint: x is set")
    assert after.observations[0].text == "1"
    assert tool.opened[0].kept == {}


def test_a_success_whose_state_cannot_be_kept_is_what_it_is_without_a_repair():
    replies = [call("x = 1"), call("x + 1"), DONE]
    with_repair, without = (
        play(replies, tool=ScriptedSessions(run_python, refuses=closed), repair=repair).trajectory
        for repair in (Saar(), None)
    )
    assert [t.segments for t in with_repair.turns] == [t.segments for t in without.turns]


# Tools that keep state beside tools that keep none: whichever the fix calls, what failed leaves nothing behind.


cell, look_up = hermes_call, partial(hermes_call, name="look_up")


def played(*replies: str, repair: Saar | Branch, book: ScriptedTool | None = None) -> tuple[Play, ScriptedSessions]:
    sessions = ScriptedSessions(run_python)
    book = book or ScriptedTool(lambda word: ("none", "error", None) if word == "?" else (word, "ok", None), "look_up")
    return play([*replies, DONE], tool=sessions, beside=[book], style="hermes", repair=repair), sessions


@pytest.mark.parametrize("repair", [Saar(), Branch(fresh=2, saar=Saar(attempts=1))], ids=["saar", "branch"])
@pytest.mark.parametrize(
    "failures",
    [["a = 5; oops"], ["a = 5; oops", "b = 7; oops"], ["?", "b = 7; oops"]],
    ids=["failure", "failure and attempt", "attempt"],
)
def test_a_fix_by_a_tool_without_state_leaves_the_state_before_the_failure(repair, failures):
    tried = [look_up(word) if word == "?" else cell(word) for word in failures]
    p, sessions = played(cell("n = 1"), *tried, look_up("six"), cell("n"), repair=repair)
    assert [t.repair.attempts if t.repair else 0 for t in p.turns] == [0, len(failures), 0, 0]
    assert sessions.opened[0].state == {"n": 1}
    assert sessions.opened[0].kept == {}


def test_without_a_fix_the_state_is_the_failures_own_whatever_was_tried():
    p, _ = played(cell("a = 5; oops"), look_up("?"), cell("a"), repair=Saar(attempts=1))
    assert [t.repair.decision if t.repair else None for t in p.turns] == ["unrepaired", None, None]
    assert p.turns[1].observations[0].text == "5"


def test_an_answer_after_tools_without_state_stands_where_the_failure_left_the_others_and_asks_none_again():
    told = iter(["once"])  # a second question would find nothing
    book = ScriptedTool(lambda _: (next(told), "error", None), "look_up")
    p, sessions = played(cell("a = 5; oops"), look_up("?"), repair=Saar(), book=book)
    assert [t.repair.decision if t.repair else None for t in p.turns] == ["answered", None, None]
    assert sessions.opened[0].state == {"a": 5}


def test_what_is_open_is_closed_where_another_tool_cannot_be_opened():
    sessions, broken = ScriptedSessions(run_python), ScriptedSessions(run_python, "other", broken=["open"])
    p = play([cell("n = 1"), DONE], tool=sessions, beside=[broken], style="hermes")
    assert p.trajectory.stop == "infrastructure"
    assert [session.events for session in sessions.opened] == [["close"]]


def test_a_call_begins_when_the_one_before_it_has_ended():
    """It may build on what that one does, also where each takes its time."""
    at_work: list[str] = []

    class Slow(ScriptedTool):
        async def __call__(self, call):
            at_work.append(f"{call.code} begins")
            for _ in range(3 if call.code == "one" else 0):
                await asyncio.sleep(0)
            at_work.append(f"{call.code} ends")
            return await super().__call__(call)

    tool = Slow(lambda code: (code, "ok", None))
    p = play([cell("one") + "\n" + cell("two"), DONE], tool=tool, style="hermes")
    assert at_work == ["one begins", "one ends", "two begins", "two ends"]
    assert [o.text for o in p.turns[0].observations] == ["one", "two"]


# Tools with a memory that the trajectories of a tree share, and states that cannot be kept.


CALL = ToolCall("0", "python", {"code": "1"}, 0)


def test_what_was_kept_for_a_trajectory_that_lost_the_tool_goes_with_it_once():
    async def work() -> list[str]:
        sessions = ScriptedSessions(run_python)
        tools = ForkableTool(sessions)
        one = await tools.open("one")
        used, _ = await one.checkpoint(), await one.checkpoint()
        await one.discard(used)
        await tools.fork("one", "other")
        other = await tools.open("other")
        await other(CALL)
        await one.close()
        (session,) = sessions.opened
        assert not session.kept
        return [event for event in session.events if event.startswith("discard")]

    freed = asyncio.run(work())
    assert len(freed) == len(set(freed))


class Full:
    """A sandbox whose sessions keep no state."""

    def __init__(self) -> None:
        self.opened = 0

    async def session(self, **_: object) -> Full:
        self.opened += 1
        return self

    async def run(self, code: str) -> Result:
        return Result("ok", value="1")

    async def checkpoint(self) -> str:
        raise CheckpointRefused("not this one")


def test_a_state_that_cannot_be_kept_stays_as_it_is():
    async def work() -> str:
        sandbox = Full()
        tool = await PythonSessions(sandbox).open("t1")  # type: ignore[arg-type]
        with pytest.raises(CheckpointRefused, match="not this one"):
            await tool.checkpoint()
        assert sandbox.opened == 1
        return (await tool(CALL)).text

    assert asyncio.run(work()) == "1"


def tree() -> tuple[ScriptedSessions, ForkableTool]:
    """A tool whose state cannot be kept while a trajectory's `x` is set."""
    sessions = ScriptedSessions(run_python, refuses=lambda state: "x is set" if state.get("x") else "")
    return sessions, ForkableTool(sessions)


def python(code: str) -> ToolCall:
    return ToolCall("0", "python", {"code": code}, 0)


@pytest.mark.parametrize("freed", ["by its code", "by its end"])
def test_a_trajectory_waits_for_another_whose_state_cannot_be_kept(freed: str):
    async def work() -> list[str]:
        _, tools = tree()
        one = await tools.open("one")
        await one(python("y = 1"))
        await tools.fork("one", "other")
        other = await tools.open("other")
        await one(python("x = 5; y = 2"))
        waiting = asyncio.create_task(other(python("y")))
        said = [(await one(python("x + y"))).text]
        assert not waiting.done()
        await (one(python("x = 0")) if freed == "by its code" else one.close())
        return [*said, (await waiting).text]

    assert asyncio.run(work()) == ["7", "1"]


def test_there_is_no_branch_from_a_state_that_cannot_be_kept():
    async def work() -> str:
        sessions, tools = tree()
        one = await tools.open("one")
        await one(python("x = 5"))
        with pytest.raises(CheckpointRefused, match="x is set"):
            await tools.fork("one", "other")
        assert not sessions.opened[0].kept
        return (await one(python("x"))).text

    assert asyncio.run(work()) == "5"
