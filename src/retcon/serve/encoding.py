"""New messages of a conversation as ids: appended to what stands, which is never encoded again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from retcon.chat.chat import Chat
from retcon.chat.jsons import read_arguments
from retcon.core.errors import nearest
from retcon.core.sample import ids_of
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn
from retcon.serve.nodes import continued, joined
from retcon.serve.refusing import wrong
from retcon.serve.said import Called, Said
from retcon.serve.sessions import Place
from retcon.transcripts.failures.rules import judge


@dataclass(frozen=True, slots=True)
class _Block:
    """A message of the assistant (None: one that stands already, or none yet), and what follows it."""

    assistant: Said | None
    tools: tuple[Said, ...]
    users: tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a request goes on from: all turns so far, with what it adds to them."""

    trajectory: Trajectory
    observations: tuple[Observation, ...]
    given: tuple[Segment, ...]


def standing_of(place: Place, chat: Chat, messages: Sequence[Said]) -> Standing:
    """Raises RequestRefused for messages in an order that no conversation has."""
    session, new = place.session, messages[place.start :]
    if place.parent is None:
        given = opened(chat, new)
        return Standing(Trajectory(session.id, session.task, given, ()), (), given)
    prompt, (*turns, last) = joined([node.exchange for node in place.parent.path])
    observations, given = followed(chat, last, messages[place.start - 1].calls, new, added=place.added)
    last = continued(last, observations, given)
    return Standing(Trajectory(session.id, session.task, prompt, (*turns, last)), observations, given)


def opened(chat: Chat, messages: Sequence[Said]) -> tuple[Segment, ...]:
    """All that is told before the model's turn. What an assistant says in it was not sampled here: of kind `prompt`,
    and nothing that is learnt. Raises RequestRefused that names the message."""
    first, *others = _blocks(messages)
    head = [message for message in messages if message.role == "system"] + list(first.users)
    if not messages or first.tools or not first.users:
        raise wrong("messages", "a conversation begins with a message of the user, after the system's if there is one")
    segments = list(chat.opened([(message.role, message.text) for message in head]))
    return (*segments, *_written_elsewhere(chat, others))


def followed(
    chat: Chat, turn: Turn, called: Sequence[Called], messages: Sequence[Said], *, added: str = ""
) -> tuple[tuple[Observation, ...], tuple[Segment, ...]]:
    """What follows a turn of the model's: the observations of its calls, and all segments up to its next turn.

    called: the turn's calls as the client was given them; none where they were run here. Whether a call failed is what
    the tool's message says (`is_error`); where it says nothing, what its text is taken for, by a rule that is named.
    added: what the client wrote on the model's message: told as another message of the assistant's, or in the same one
    where that did not come to its end. Raises RequestRefused.
    """
    first, *others = _blocks(messages)
    if first.assistant is not None:
        raise wrong(f"messages[{first.assistant.at}]", "two messages of the assistant in a row")
    open_calls = () if added or turn.observations else turn.calls
    observations = _observations(open_calls, called if open_calls else (), first) or turn.observations
    last, told = ids_of(turn.generated)[-1:], [(message.role, message.text) for message in first.users]
    at_once, last_id = () if added else told, last[0] if last else None
    if turn.calls and observations:
        follows = chat.observations(turn.calls, observations, last_id=last_id, told=at_once, written=turn.text)
    else:
        follows = chat.answered(at_once, last_id=last_id)
    if added:
        wrote = replace(chat.wrote(added.strip()), kind="prompt")
        if not observations and last_id not in (None, *chat.stop_ids):
            follows, wrote = (), Segment("prompt", added, tuple(chat.tokenizer.encode(added)))
        follows = (*follows, wrote, *chat.answered(told, last_id=ids_of([wrote])[-1]))
    return observations, (*follows, *_written_elsewhere(chat, others))


def _written_elsewhere(chat: Chat, blocks: Sequence[_Block]) -> Iterator[Segment]:
    for block in blocks:
        assert block.assistant is not None
        calls = block.assistant.calls
        stand_ins = tuple(ToolCall(f"told.{n}", call.name, _arguments(call), 0) for n, call in enumerate(calls))
        wrote = chat.wrote(block.assistant.text, [(call.name, call.arguments) for call in stand_ins])
        yield replace(wrote, kind="prompt")
        observations, last = _observations(stand_ins, calls, block), (wrote.ids or (None,))[-1]
        told = [(message.role, message.text) for message in block.users]
        if calls:
            yield from chat.observations(stand_ins, observations, last_id=last, told=told, written=wrote.text)
        else:
            yield from chat.answered(told, last_id=last)


def _arguments(call: Called) -> Mapping[str, object] | str:
    found = read_arguments(call.arguments)
    return call.arguments if found is None else found


def _observations(calls: Sequence[ToolCall], called: Sequence[Called], block: _Block) -> tuple[Observation, ...]:
    """One for each call, in the calls' order: calls of one id are answered in the order of the messages."""
    known = [call.id for call in called]
    answers: dict[str, deque[Said]] = {id: deque() for id in known}
    for message in block.tools:
        if message.call_id not in known:
            said = f"no call '{message.call_id}' is open{nearest(message.call_id, known)}"
            raise wrong(f"messages[{message.at}].tool_call_id", said)
        if len(answers[message.call_id]) == known.count(message.call_id):
            said = f"the call '{message.call_id}' has been answered already"
            raise wrong(f"messages[{message.at}].tool_call_id", said)
        answers[message.call_id].append(message)
    if missing := [id for id in known if len(answers[id]) < known.count(id)]:
        raise wrong("messages", f"no message of a tool answers the call {missing[0]}")
    return tuple(_observation(call, answers[id].popleft()) for call, id in zip(calls, known, strict=True))


def _observation(call: ToolCall, message: Said) -> Observation:
    if message.failed is not None:
        return Observation(call.id, message.text, "error" if message.failed else "ok")
    verdict = judge(message.text, (call,))
    if verdict is None:
        return Observation(call.id, message.text, "ok")
    return Observation(
        call.id, message.text, verdict.status, verdict.error_type, rule=verdict.rule, line=verdict.line
    )  # fmt: skip


def _blocks(messages: Sequence[Said]) -> list[_Block]:
    """In order. Raises RequestRefused for an order that no conversation has."""
    blocks = [_Block(None, (), ())]
    for n, message in enumerate(messages):
        last, where = blocks[-1], f"messages[{message.at}]"
        if message.role == "system":
            if any(m.role != "system" for m in messages[:n]) or message.at != n:
                raise wrong(f"{where}.role", "a message of the system stands before all others")
        elif message.role == "assistant":
            if last.assistant is not None and not (last.tools or last.users):
                raise wrong(where, "two messages of the assistant in a row")
            blocks.append(_Block(message, (), ()))
        elif message.role == "tool":
            if last.users:
                raise wrong(
                    f"{where}.role", "a tool's message stands right after the assistant's whose call it answers"
                )
            blocks[-1] = replace(last, tools=(*last.tools, message))
        else:
            blocks[-1] = replace(last, users=(*last.users, message))
    if not (blocks[-1].tools or blocks[-1].users):
        raise wrong("messages", "the last message must be the user's or a tool's: the model's turn follows it")
    return blocks
