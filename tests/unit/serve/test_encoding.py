"""What follows a turn, in every family of chats."""

from __future__ import annotations

import pytest

from conversing import chat_of, text_of
from retcon.chat.chat import Chat
from retcon.chat.family import FAMILIES
from retcon.core.types import Turn
from retcon.http.endpoints import RequestRefused
from retcon.serve.sessions import ChatMessage, MessageCall, render_continuation, render_opening


def turn_of(chat: Chat, text: str, calls: bool = False) -> Turn:
    written = chat.render_turn(text, [("python", {"code": "print(1)"})] if calls else ())
    return Turn((written,), chat.parse(written.ids or (), prefix="0.0").calls, stop="call" if calls else "answer")


@pytest.mark.parametrize("family", FAMILIES.names)
def test_what_a_client_added_stands_between_the_turn_and_the_users_words(family: str) -> None:
    chat = chat_of(family)
    turn = turn_of(chat, "sampled")
    _, segments = render_continuation(chat, turn, (), [ChatMessage("user", "and then")], added="Calling tools: f")
    text = text_of(segments)
    assert "sampled" not in text
    assert text.index("Calling tools: f") < text.index("and then")
    plain = text_of(chat.render_messages([("user", "and then")], last_id=(turn.segments[0].ids or (0,))[-1]))
    assert text.endswith(plain[plain.index("and then") :])
    assert {s.kind for s in segments} <= {"prompt", "scaffold"}


@pytest.mark.parametrize("family", FAMILIES.names)
def test_results_are_rendered_as_in_a_rollout(family: str) -> None:
    chat = chat_of(family)
    turn = turn_of(chat, "I run it.", calls=True)
    said = [ChatMessage("tool", "1", call_id="a"), ChatMessage("user", "Go on.")]
    observations, segments = render_continuation(chat, turn, [MessageCall("a", "python", "{}")], said)
    assert [(o.call_id, o.text, o.status) for o in observations] == [(turn.calls[0].id, "1", "ok")]
    last = (turn.segments[0].ids or (0,))[-1]
    told = chat.observations(turn.calls, observations, last_id=last, messages=[("user", "Go on.")], written=turn.text)
    assert segments == told


@pytest.mark.parametrize("family", FAMILIES.names)
def test_a_conversation_of_elsewhere_reads_as_one_of_here(family: str) -> None:
    """The text of a history that was told is that of one that was sampled in the same words."""
    chat = chat_of(family)
    turn = turn_of(chat, "I run it.", calls=True)
    _, here = render_continuation(
        chat, turn, [MessageCall("a", "python", "")], [ChatMessage("tool", "1", call_id="a", at=2)]
    )
    call = MessageCall("a", "python", '{"code": "print(1)"}')
    told = [
        ChatMessage("system", "Solve it.", at=0),
        ChatMessage("user", "What?", at=1),
        ChatMessage("assistant", "I run it.", (call,), at=2),
        ChatMessage("tool", "1", call_id="a", at=3),
    ]
    there = render_opening(chat, told)
    before = text_of(chat.render_prompt([("system", "Solve it."), ("user", "What?")]))
    assert text_of(there) == before + turn.text + text_of(here)
    assert {s.kind for s in there} <= {"prompt", "scaffold", "observation"}


SAME = (MessageCall("a", "python", '{"code": "print(1)"}'), MessageCall("a", "python", '{"code": "print(2)"}'))


def told(*results: str) -> list[ChatMessage]:
    """A conversation of elsewhere whose two calls have one id."""
    tools = [ChatMessage("tool", result, call_id="a", at=n) for n, result in enumerate(results, 2)]
    return [ChatMessage("user", "Go."), ChatMessage("assistant", "", SAME, at=1), *tools]


def test_calls_of_one_id_are_answered_in_order() -> None:
    text = text_of(render_opening(chat_of("hermes"), told("first", "second")))
    assert 0 < text.index("first") < text.index("second")


def test_as_many_results_as_calls_are_needed_of_an_id() -> None:
    chat = chat_of("hermes")
    with pytest.raises(RequestRefused, match="no message of a tool answers the call a"):
        render_opening(chat, told("first"))
    with pytest.raises(RequestRefused, match="the call 'a' has been answered already") as refused:
        render_opening(chat, told("first", "second", "third"))
    assert refused.value.field == "messages[4].tool_call_id"
