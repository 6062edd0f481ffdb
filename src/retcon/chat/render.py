"""A transcript that is text, whoever's it was, as the model that is trained would have been shown and written it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retcon.chat import hermes, markdown
from retcon.chat.chat import Chat
from retcon.core.types import Segment, ToolCall, Trajectory, Turn

Told = tuple[str, str]
"""A message before the model's first turn: its role (`system`, `user`, `assistant`) and text."""


def render(trajectory: Trajectory, chat: Chat, before: Sequence[Told]) -> Trajectory:
    """The trajectory in the chat's template, with ids: a rollout that went the same way has the same ones.

    before: what the model was told first, in place of the trajectory's prompt, which knows no roles. What it wrote is
    of kind `sampled`, calls in the chat's style whatever they were in; the rest is not.
    """
    prompt = [segment for role, text in before for segment in chat.told(role, text)]
    last = len(trajectory.turns) - 1
    turns = tuple(_turn(turn, n, chat, ends=n == last) for n, turn in enumerate(trajectory.turns))
    return replace(trajectory, prompt=(*prompt, *chat.reopened((), "prompt")), turns=turns)


def _turn(turn: Turn, number: int, chat: Chat, *, ends: bool) -> Turn:
    written = chat.wrote(_written(turn, chat))
    calls = chat.parse(written.ids or (), prefix=f"{number}.0").calls
    told = [s.text for s in turn.segments if s.kind == "prompt"]
    rest: tuple[Segment, ...] = ()
    if turn.observations:
        answered = [call for call in turn.calls if call.id in {o.call_id for o in turn.observations}]
        rest = chat.observations(answered, turn.observations, told=told)
    elif told or not ends:
        rest = chat.answered(told)
    return Turn((written, *rest), calls, (), turn.stop)


def _written(turn: Turn, chat: Chat) -> str:
    """What the model wrote: as it stands where its calls are in the chat's style, else its words up to the first call,
    and the calls."""
    text = turn.text.strip()
    own = chat.parse_text(text, prefix="").calls
    if [_key(c, chat) for c in own] == [_key(c, chat) for c in turn.calls]:
        return text
    words = turn.text[: turn.calls[0].char].strip() if turn.calls else text
    return "\n".join([words] * bool(words) + [_call(call, chat) for call in turn.calls])


def _key(call: ToolCall, chat: Chat) -> tuple[str, object]:
    """What two calls must share to be the same: in Markdown the program alone, which is all that it can tell."""
    if chat.style == "hermes":
        return call.name, _arguments(call.arguments)
    return "", call.code.strip()


def _call(call: ToolCall, chat: Chat) -> str:
    if chat.style == "hermes":
        arguments = _arguments(call.arguments)
        if isinstance(arguments, Mapping):
            return hermes.render_call(call.name, arguments)
        return f"{hermes.OPEN}\n{arguments}\n{hermes.CLOSE}"
    if call.code or isinstance(call.arguments, str):
        return markdown.render_call(call.code.strip("\n"))
    return f"```{call.name}\n{hermes.as_json(call.arguments)}\n```"


def _arguments(arguments: Mapping[str, object] | str) -> Mapping[str, object] | str:
    """Without the copy of the program under `code` that reading adds where a tool names it otherwise."""
    if isinstance(arguments, str) or "code" not in arguments:
        return arguments
    others = {name: value for name, value in arguments.items() if name != "code"}
    return others if arguments["code"] in others.values() else arguments
