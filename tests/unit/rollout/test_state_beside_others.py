"""Tools that keep state beside tools that keep none: whichever the fix calls, what failed leaves nothing behind."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from playing import Play, hermes_call, play, run_python
from retcon.purify.kinds.branch import Branch
from retcon.purify.saar import Saar
from retcon.tools.scripted import ScriptedSessions, ScriptedTool

DONE = "It is 42."
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
