"""Render text transcripts in the chat template of the trained model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from retcon.chat.chat import Chat
from retcon.chat.family import NamedCall
from retcon.chat.types import TextMessage
from retcon.core.types import Segment, ToolCall, Trajectory, Turn

_THOUGHT = re.compile(r"\s*(?:<think>)?(?P<thought>.*?)</think>\s*", re.DOTALL)


def render(
    trajectory: Trajectory, chat: Chat, before: Sequence[TextMessage],
    after: Sequence[Sequence[TextMessage]] | None = None, thoughts: Sequence[str] = (),
) -> Trajectory:  # fmt: skip
    """Render a trajectory in the chat's template, with a rollout's ids.

    before: the first messages, in place of the trajectory's prompt, which has no roles; after: those after each turn,
    None for its segments of kind `prompt`, as the user's. thoughts: each turn's reasoning, "" for none; so is a text up
    to `</think>`. It goes where the template has it, else before the words. The model's turns are of kind `sampled`,
    with calls in the chat's style.
    """
    last = len(trajectory.turns) - 1
    messages = [_user_messages(turn) for turn in trajectory.turns] if after is None else after
    turns = tuple(
        _turn(turn, n, chat, own, thought, ends=n == last)
        for n, (turn, own, thought) in enumerate(
            zip(trajectory.turns, messages, thoughts or [""] * len(trajectory.turns), strict=True)
        )
    )
    return replace(trajectory, prompt=chat.render_prompt(before), turns=turns)


def _user_messages(turn: Turn) -> list[TextMessage]:
    return [("user", s.text) for s in turn.segments if s.kind == "prompt"]


def _turn(turn: Turn, number: int, chat: Chat, messages: Sequence[TextMessage], thought: str, *, ends: bool) -> Turn:
    begins = thought
    if not thought and (found := _THOUGHT.match(turn.text, 0, turn.calls[0].char if turn.calls else len(turn.text))):
        begins, thought = found[0], found["thought"]
    pieces = chat.framing.render_thought(thought.strip(), last=ends)
    written = chat.render_turn(*_written(turn, chat, 0 if pieces is None else len(begins)), pieces or ())
    calls = chat.parse(written.ids or (), prefix=f"{number}.0").calls
    rest: tuple[Segment, ...] = ()
    if turn.observations:
        answered = [call for call in turn.calls if call.id in {o.call_id for o in turn.observations}]
        rest = chat.observations(answered, turn.observations, messages=messages, written=written.text)
    elif messages or not ends:
        rest = chat.render_messages(messages)
    return Turn((written, *rest), calls, (), turn.stop)


def _written(turn: Turn, chat: Chat, start: int) -> tuple[str, Sequence[NamedCall]]:
    """Return a turn's text from `start` on if its calls are in the chat's style, else its words and calls."""
    text = turn.text[start:].strip()
    own = chat.parse_text(text, prefix="").calls
    if [_key(c, chat) for c in own] == [_key(c, chat) for c in turn.calls]:
        if chat.family.calls_are_text or not own:
            return text, ()
        words = text[: own[0].char].strip()
    else:
        words = turn.text[start : turn.calls[0].char].strip() if turn.calls else text
    named = chat.family.names_calls
    return words, [(call.name, _arguments(call.arguments) if named else call.arguments) for call in turn.calls]


def _key(call: ToolCall, chat: Chat) -> tuple[str, object]:
    """Return the key by which calls are compared: in Markdown the program alone."""
    return (call.name, _arguments(call.arguments)) if chat.family.names_calls else ("", call.code.strip())


def _arguments(arguments: Mapping[str, object] | str) -> Mapping[str, object] | str:
    """Drop the copy of the program under `code` that reading adds where a tool has another key."""
    if isinstance(arguments, str) or "code" not in arguments:
        return arguments
    others = {name: value for name, value in arguments.items() if name != "code"}
    return others if arguments["code"] in others.values() else arguments
