"""OpenHands' events: those of its SDK (`kind`), and those before it (`action`, `observation`)."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.purify.words import without
from retcon.transcripts.items import APART, Thought, text_of
from retcon.transcripts.itemwise import (
    Item,
    Itemwise,
    Pieces,
    arguments_of,
    beside_words,
    loose_words,
    objects,
    part_of,
    parts,
    some_id,
    string,
)
from retcon.transcripts.pieces import Call, Piece, Stretch, ToolOutput
from retcon.transcripts.types import Json
from retcon.transcripts.verdicts import UNCLEAR, Verdict

_RUNS = ("run", "run_ipython", "read", "write", "edit", "browse", "browse_interactive", "call_tool_mcp", "execute_bash")
_SAYS = ("message", "finish", "think")
"""Actions by which the agent speaks."""
_PROGRAMS = ("code", "command")
_REASONING = ("reasoning_content", "thinking_blocks", "reasoning_details", "responses_reasoning_item")
"""What stands beside the words of an action and is of the same reply: what was thought, and the same as providers have
it, some of it signed or encrypted."""
_OF_REPLY = (*_REASONING, "provider_specific_fields")
_REPLY = "model_response"
"""Of an action before the SDK, the reply as it was received: emptied where the action has other words."""
_THOUGHT = "thought"
"""Beside words: that they are what was thought."""


class OpenHands(Itemwise):
    """Events of OpenHands, before the SDK and since.

    An action is a call, its `thought` the words before it, as is the SDK's `reasoning_content`; an observation is
    its output. Exit codes and `is_error` count where they report a failure; an action that the user rejected did
    not run. Changes of state stay with the event before them."""

    name = "openhands"
    needs = frozenset({"kind", "action"})
    marks = ("action", "observation", "cause", "extras", "args", "thought", "kind", "ActionEvent", "ObservationEvent")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(
            item.get("kind") == "ActionEvent" or (_is_call(item) and isinstance(item.get("args"), dict))
            for item in items
        )

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any(
            item.get("kind") == "MessageEvent" or (item.get("action") in _SAYS and isinstance(item.get("args"), dict))
            for item in items
        )

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        turn: Json = None
        for item in items:
            if item.get("kind"):
                turn = _of_sdk(pieces, item, turn)
            else:
                _before_sdk(pieces, item)
        return pieces.all

    def rebuilt(self, pieces: Sequence[Piece]) -> list[Json]:
        """Return the fix's events, the first with the words it takes over."""
        thought = next((piece.text.removesuffix(APART) for piece in pieces if _is_thought(piece)), None)
        words = loose_words([piece for piece in pieces if not _is_thought(piece)])
        items = [item for piece in pieces for item in parts(piece)]
        if words is None:
            return [_with_message(item, thought) for item in items]
        beside = _thinking(part_of(beside_words(pieces), "reasoning"), thought)
        for n, item in enumerate(items):
            if isinstance(item, dict) and (item.get("kind") == "ActionEvent" or _is_call(item)):
                return [*items[:n], _with_thought(item, words, beside), *items[n + 1 :]]
        return items

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        message, args = part_of(item, "llm_message"), part_of(item, "args")
        if not isinstance(item, dict):
            return item
        if message:
            return {**item, "llm_message": super().without_words(message, cuts)}
        key = "content" if args.get("content") else "thought"
        return {**item, "args": {**args, key: without(string(args.get(key)), cuts)}}


def _is_call(item: Item) -> bool:
    """Whether an event before the SDK is a call.

    An action that runs something, or any other that a tool's call became (`task_tracking`, `delegate`); its
    messages are none."""
    action = item.get("action")
    made = item.get("source") == "agent" and bool(part_of(item, "tool_call_metadata"))
    return action in _RUNS or (made and isinstance(action, str) and action not in (*_SAYS, "system"))


def _of_sdk(pieces: Pieces, item: Item, turn: Json) -> Json:
    """Take in an event; `turn` is the reply its action came from."""
    kind = item.get("kind")
    if kind == "ActionEvent":
        reply = item.get("llm_response_id")
        if turn is None or reply != turn:
            reasoning = {key: item.get(key) for key in _REASONING if key in item}
            apart = not _think(pieces, item, item)
            pieces.said(item, text_of(item.get("thought")), moved=[], apart=apart, beside={"reasoning": reasoning})
        called = part_of(item, "tool_call")
        function = part_of(called, "function") or called
        action = {k: v for k, v in part_of(item, "action").items() if k != "kind"}
        arguments = action or arguments_of(function.get("arguments"))
        name = string(item.get("tool_name")) or string(function.get("name"), "python")
        pieces.called(item, [Call(name, arguments, id=some_id(item.get("tool_call_id")))])
        return reply
    if kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
        pieces.answered(item, [_sdk_output(item)])
    elif kind == "MessageEvent":
        message = part_of(item, "llm_message")
        if message.get("role") == "assistant" or item.get("source") == "agent":
            pieces.said(item, text_of(message.get("content")), apart=not _think(pieces, item, message))
        else:
            pieces.told(item, text_of(message.get("content")))
    elif kind == "SystemPromptEvent":
        pieces.told(item, text_of([item.get("system_prompt")]))
    else:
        pieces.beside(item)
        return turn
    return None


def _think(pieces: Pieces, item: Item, reply: Item) -> bool:
    """Take in the thought before a reply; return whether there was any."""
    thought = string(reply.get("reasoning_content"))
    if thought:
        pieces.said(item, Thought(thought + APART), moved=[], apart=True, beside={_THOUGHT: True})
    return bool(thought)


def _is_thought(piece: Piece) -> bool:
    return _THOUGHT in beside_words([piece])


def _thinking(fields: Item, thought: str | None) -> Item:
    """Return the fields of a thought of which this is left."""
    if thought is None or fields.get("reasoning_content") == thought:
        return fields
    again: dict[str, Json] = {key: [] if isinstance(fields[key], list) else None for key in _REASONING if key in fields}
    return {**fields, **again, "reasoning_content": thought}


def _with_message(item: Json, thought: str | None) -> Json:
    """Return the model's message with what is left of its thought."""
    message = part_of(item, "llm_message")
    if not isinstance(item, dict) or not message.get("reasoning_content"):
        return item
    new = _thinking(message, thought)
    return item if new is message else {**item, "llm_message": new}


def _sdk_output(item: Item) -> ToolOutput:
    own_id = some_id(item.get("tool_call_id"))
    if item.get("kind") == "AgentErrorEvent" and "error" in item:
        return ToolOutput(string(item.get("error")), own_id, Verdict("error", "status"), typed=True)
    if item.get("kind") == "UserRejectObservation":
        return _rejected(string(item.get("rejection_reason")), own_id)
    seen = part_of(item, "observation")
    text = text_of(seen.get("content")) or text_of(seen.get("output"))
    return _judged(text, own_id, seen, part_of(seen, "metadata"))


def _before_sdk(pieces: Pieces, item: Item) -> None:
    action, args = item.get("action"), part_of(item, "args")
    if item.get("observation") not in (None, "agent_state_changed", "null", "recall"):
        extras = part_of(item, "extras")
        made = part_of(item, "tool_call_metadata")
        text, own_id = string(item.get("content")), some_id(made.get("tool_call_id"))
        if item.get("observation") == "error":
            pieces.answered(item, [ToolOutput(text, own_id, Verdict("error", "status"), typed=True)])
        elif item.get("observation") == "user_rejected":
            pieces.answered(item, [_rejected(text, own_id)])
        else:
            pieces.answered(item, [_judged(text, own_id, extras, part_of(extras, "metadata"))])
    elif _is_call(item) and item.get("source") != "user":
        made = part_of(item, "tool_call_metadata")
        beside: Item = {"reasoning": _reasoning_in(made)}
        pieces.said(item, string(args.get("thought")), moved=[], apart=True, beside=beside)
        program = {} if action == "edit" else {key: args[key] for key in _PROGRAMS if key in args}
        arguments = program or {k: v for k, v in args.items() if k != "thought"}
        pieces.called(item, [Call(string(action), arguments, id=some_id(made.get("tool_call_id")))])
    elif action in _SAYS and item.get("source") == "agent":
        pieces.said(item, string(args.get("content")) or string(args.get("thought")), apart=True)
    elif action in ("message", "system"):
        pieces.told(item, string(args.get("content")))
    else:
        pieces.beside(item)


def _rejected(text: str, own_id: str | None) -> ToolOutput:
    """Return the output of a rejected action: unclear."""
    return ToolOutput(text, own_id, Verdict("ok", UNCLEAR), typed=True)


def _judged(text: str, own_id: str | None, *where: Item) -> ToolOutput:
    """Return an output that an exit code or flag calls failed."""
    for fields in where:
        code = fields.get("exit_code")
        if fields.get("timeout") is True:
            return ToolOutput(text, own_id, Verdict("timeout", "status", "Timeout"), typed=True)
        if type(code) is int and code >= 0:  # -1: it still runs
            return ToolOutput(text, own_id, Verdict("error", "status", f"exit {code}") if code else None, typed=True)
        if fields.get("is_error") is True:
            return ToolOutput(text, own_id, Verdict("error", "status"), typed=True)
    return ToolOutput(text, own_id)


def _with_thought(item: Item, words: str, beside: Item) -> Json:
    """An action with other words, and the reasoning that was theirs."""
    if item.get("kind"):
        thought = item.get("thought")
        if text_of(thought) != words:
            thought = [{"type": "text", "text": words}]
        new = {**{k: v for k, v in item.items() if k not in _REASONING}, "thought": thought, **beside}
        return item if new == item else new
    args, made = part_of(item, "args"), part_of(item, "tool_call_metadata")
    if args.get("thought", "") == words and _reasoning_in(made) == beside:
        return item
    stale = {"tool_call_metadata": {**made, _REPLY: None}} if made.get(_REPLY) else {}
    return {**item, "args": {**args, "thought": words}, **stale}


def _reasoning_in(made: Item) -> Item:
    """What was thought before an action, in the reply that it was received in."""
    choices = objects(part_of(made, _REPLY).get("choices"))
    message = part_of(choices[0], "message") if choices else {}
    return {key: message[key] for key in _OF_REPLY if key in message}


FORMAT = OpenHands()
