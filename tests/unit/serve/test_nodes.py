"""The tree of a session's exchanges."""

from __future__ import annotations

import sys

from retcon.core.types import Provenance, Segment, Turn
from retcon.serve.nodes import Exchange, Node
from retcon.serve.said import Said
from retcon.serve.sessions import AgentSession, Place
from retcon.store import jsonl


def exchange(text: str) -> Exchange:
    turn = Turn((Segment("sampled", text, (2,), (-0.5,)),), stop="answer")
    prompt = (Segment("prompt", "?", (1,)),)
    return Exchange((("user", text),), prompt, (), (turn,), Said("assistant", text), text, "answer")


def added(session: AgentSession, parent: Node | None, text: str) -> Node:
    return session.add(Place(session, parent, 0, "first"), exchange(text), "engine")


def test_a_conversation_of_any_length_is_one_trajectory() -> None:
    session, last = AgentSession("s", "t", 0.0), None
    for n in range(length := sys.getrecursionlimit() + 1):
        last = added(session, last, str(n))
    (made,) = session.trajectories(Provenance())
    assert [turn.text for turn in made.turns] == [str(n) for n in range(length)]


def test_the_ends_of_branches_come_in_the_order_in_which_they_were_begun() -> None:
    session = AgentSession("s", "t", 0.0)
    root = added(session, None, "a")
    first, second = added(session, root, "b"), added(session, root, "c")
    ends = [added(session, first, "d"), added(session, first, "e"), added(session, second, "f")]
    assert list(session.nodes()) == ends


def test_a_line_is_made_anew_where_an_exchange_or_a_reward_is_new_and_nowhere_else() -> None:
    session, about = AgentSession("s", "t", 0.0), Provenance()

    def lines() -> list[bytes]:
        made = session.lines(about)
        assert made == [jsonl.line_of(one) for one in session.trajectories(about)]
        return made

    first, second = added(session, None, "a"), added(session, None, "b")
    before = lines()
    added(session, first, "c")
    goes_on = lines()
    assert (len(goes_on), goes_on[0] is before[0], goes_on[1] is before[1]) == (2, False, True)
    session.rewards["s/1"] = 1.0
    rewarded = lines()
    assert (rewarded[0] is goes_on[0], rewarded[1] is goes_on[1]) == (True, False)
    branch = added(session, first, "d")
    branched = lines()
    assert (len(branched), branched[0] is rewarded[0]) == (3, True)
    session.take_back(branch, "first")
    added(session, second, "e")
    assert len(lines()) == 2
    session.rewards[""] = 0.5
    assert lines()[0] != rewarded[0]
