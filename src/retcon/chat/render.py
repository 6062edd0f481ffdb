"""A transcript that is text, whoever's it was, as the model that is trained would have been shown and written it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from retcon.chat.chat import Chat
from retcon.chat.family import Written
from retcon.chat.types import Told
from retcon.core.types import Segment, ToolCall, Trajectory, Turn

_THOUGHT = re.compile(r"\s*(?:<think>)?(?P<thought>.*?)</think>\s*", re.DOTALL)


def render(
    trajectory: Trajectory, chat: Chat, before: Sequence[Told], after: Sequence[Sequence[Told]] | None = None,
    thoughts: Sequence[str] = (),
) -> Trajectory:  # fmt: skip
    """The trajectory in the chat's template, with ids: a rollout that went the same way has the same ones.

    before: what the model was told first, in place of the trajectory's prompt, which knows no roles; after: after each
    turn, None for what its segments of kind `prompt` say as the user. thoughts: what each turn begins with that was
    thought, "" for none; so is a text up to `</think>`. It goes where the template has it, else before the words. What
    the model wrote is of kind `sampled`, calls in the chat's style whatever they were in; the rest is not.
    """
    last = len(trajectory.turns) - 1
    told = [_asked(turn) for turn in trajectory.turns] if after is None else after
    turns = tuple(
        _turn(turn, n, chat, own, thought, ends=n == last)
        for n, (turn, own, thought) in enumerate(
            zip(trajectory.turns, told, thoughts or [""] * len(trajectory.turns), strict=True)
        )
    )
    return replace(trajectory, prompt=chat.opened(before), turns=turns)


def _asked(turn: Turn) -> list[Told]:
    return [("user", s.text) for s in turn.segments if s.kind == "prompt"]


def _turn(turn: Turn, number: int, chat: Chat, told: Sequence[Told], thought: str, *, ends: bool) -> Turn:
    begins = thought
    if not thought and (found := _THOUGHT.match(turn.text, 0, turn.calls[0].char if turn.calls else len(turn.text))):
        begins, thought = found[0], found["thought"]
    pieces = chat.thought(thought.strip(), last=ends)
    written = chat.wrote(*_written(turn, chat, 0 if pieces is None else len(begins)), pieces or ())
    calls = chat.parse(written.ids or (), prefix=f"{number}.0").calls
    rest: tuple[Segment, ...] = ()
    if turn.observations:
        answered = [call for call in turn.calls if call.id in {o.call_id for o in turn.observations}]
        rest = chat.observations(answered, turn.observations, told=told, written=written.text)
    elif told or not ends:
        rest = chat.answered(told)
    return Turn((written, *rest), calls, (), turn.stop)


def _written(turn: Turn, chat: Chat, start: int) -> tuple[str, Sequence[Written]]:
    """What the model wrote from `start` on: as it stands where its calls are in the chat's style, else its words up to
    the first call, and the calls."""
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
    """What two calls must share to be the same: in Markdown the program alone, which is all that it can tell."""
    return (call.name, _arguments(call.arguments)) if chat.family.names_calls else ("", call.code.strip())


def _arguments(arguments: Mapping[str, object] | str) -> Mapping[str, object] | str:
    """Without the copy of the program under `code` that reading adds where a tool names it otherwise."""
    if isinstance(arguments, str) or "code" not in arguments:
        return arguments
    others = {name: value for name, value in arguments.items() if name != "code"}
    return others if arguments["code"] in others.values() else arguments
