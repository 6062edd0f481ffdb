"""The tree of a session's exchanges."""

from __future__ import annotations

import sys

from retcon.core.types import Provenance, Segment, Turn
from retcon.serve.sessions import AgentSession, ChatMessage, Exchange, Node, Place


def exchange(text: str) -> Exchange:
    turn = Turn((Segment("sampled", text, (2,), (-0.5,)),), stop="answer")
    prompt = (Segment("prompt", "?", (1,)),)
    return Exchange((("user", text),), prompt, (), (turn,), ChatMessage("assistant", text), text, "answer")


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


def test_an_exchange_comes_after_the_one_that_it_follows_and_after_those_added_there_before() -> None:
    session = AgentSession("s", "t", 0.0)
    root, other = added(session, None, "a"), added(session, None, "b")
    first, second = added(session, root, "c"), added(session, root, "d")
    last, end = added(session, first, "e"), added(session, other, "f")
    assert list(session.exchanges()) == [root, first, last, second, other, end]
