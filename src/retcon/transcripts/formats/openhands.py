"""OpenHands' events: the SDK's (`kind`), and older ones (`action`, `observation`)."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.transcripts.items import role_of, text_of, without_words
from retcon.transcripts.itemwise import Item, Steps, arguments_of, exit_output, objects, part_of, some_id, string
from retcon.transcripts.pieces import Call, Stretch, ToolOutput
from retcon.transcripts.types import Json
from retcon.transcripts.verdicts import UNCLEAR, Verdict

_RUNS = ("run", "run_ipython", "read", "write", "edit", "browse", "browse_interactive", "call_tool_mcp", "execute_bash")
_SAYS = ("message", "finish", "think")
"""Actions by which the agent speaks."""
_OUTPUTS = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
_PROGRAMS = ("code", "command")
_REASONING = ("reasoning_content", "thinking_blocks", "reasoning_details", "responses_reasoning_item")
"""What stands beside the words of an action and is of the same reply: what was thought, and the same as providers have
it, some of it signed or encrypted."""
_OF_REPLY = (*_REASONING, "provider_specific_fields")
_REPLY = "model_response"
"""Of an action before the SDK, the reply as it was received: emptied where the action has other words."""


class OpenHands(Steps):
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

    def speaker(self, item: Item) -> str | None:
        kind, action = item.get("kind"), item.get("action")
        if kind == "ActionEvent":
            return "assistant"
        if kind == "MessageEvent":
            own = part_of(item, "llm_message").get("role") == "assistant" or item.get("source") == "agent"
            return "assistant" if own else role_of(item)
        if kind:
            return "tool" if kind in _OUTPUTS else "system" if kind == "SystemPromptEvent" else None
        if item.get("observation") not in (None, "agent_state_changed", "null", "recall"):
            return "tool"
        own = (_is_call(item) and item.get("source") != "user") or (action in _SAYS and item.get("source") == "agent")
        return "assistant" if own else role_of(item) if action in ("message", "system") else None

    def goes_on(self, item: Item, last: Item) -> bool:
        reply = item.get("llm_response_id")
        return reply is not None and item.get("kind") == "ActionEvent" and reply == last.get("llm_response_id")

    def words(self, item: Item) -> str:
        if item.get("kind"):
            message = part_of(item, "llm_message")
            system = [item.get("system_prompt")] * ("system_prompt" in item)
            return text_of(message.get("content") if message else item.get("thought", system))
        return string(part_of(item, "args").get(_key(item)))

    def with_words(self, item: dict[str, Json], words: str) -> dict[str, Json]:
        if item.get("kind"):
            return {**item, "thought": [{"type": "text", "text": words}]}
        made = part_of(item, "tool_call_metadata")
        return {**item, "args": {**part_of(item, "args"), _key(item): words}, **_without_reply(made)}

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        message = part_of(item, "llm_message")
        if not isinstance(item, dict) or not message:
            return super().without_words(item, cuts)
        return {**item, "llm_message": {**message, "content": without_words(message.get("content"), cuts)}}

    def thought(self, item: Item) -> str:
        return string((part_of(item, "llm_message") or item).get("reasoning_content")) if item.get("kind") else ""

    def with_thought(self, item: dict[str, Json], thought: str | None, home: Item) -> dict[str, Json]:
        if message := part_of(item, "llm_message"):
            return {**item, "llm_message": {**message, **_thinking(message, thought)}}
        if not home:
            return item
        if item.get("kind"):
            new = {**{k: v for k, v in item.items() if k not in _REASONING}, **_thinking(home, thought)}
            return item if new == item else new
        made = part_of(item, "tool_call_metadata")
        same = _reasoning_in(made) == _reasoning_in(part_of(home, "tool_call_metadata"))
        return item if same else {**item, **_without_reply(made)}

    def calls(self, item: Item) -> list[Call]:
        if item.get("kind") == "ActionEvent":
            called = part_of(item, "tool_call")
            function = part_of(called, "function") or called
            action = {k: v for k, v in part_of(item, "action").items() if k != "kind"}
            name = string(item.get("tool_name")) or string(function.get("name"), "python")
            arguments = action or arguments_of(function.get("arguments"))
            return [Call(name, arguments, id=some_id(item.get("tool_call_id")))]
        if item.get("kind") or not _is_call(item):
            return []
        args, own_id = part_of(item, "args"), part_of(item, "tool_call_metadata").get("tool_call_id")
        program = {} if item["action"] == "edit" else {key: args[key] for key in _PROGRAMS if key in args}
        rest = program or {k: v for k, v in args.items() if k != "thought"}
        return [Call(string(item.get("action")), rest, id=some_id(own_id))]

    def outputs(self, item: Item) -> list[ToolOutput]:
        if self.speaker(item) != "tool":
            return []
        kind = item.get("kind") or item.get("observation")
        own_id = some_id((item if item.get("kind") else part_of(item, "tool_call_metadata")).get("tool_call_id"))
        seen = part_of(item, "observation" if item.get("kind") else "extras")
        text = (
            text_of(seen.get("content")) or text_of(seen.get("output"))
            if item.get("kind")
            else string(item.get("content"))
        )
        if kind == "error" or (kind == "AgentErrorEvent" and "error" in item):
            return [ToolOutput(string(item.get("error"), text), own_id, Verdict("error", "status"), typed=True)]
        if kind in ("user_rejected", "UserRejectObservation"):
            reason = string(item.get("rejection_reason"), text)
            return [ToolOutput(reason, own_id, Verdict("ok", UNCLEAR), typed=True)]
        return [_judged(text, own_id, seen, part_of(seen, "metadata"))]


def _is_call(item: Item) -> bool:
    """Whether an event before the SDK is a call.

    An action that runs something, or any other that a tool's call became (`task_tracking`, `delegate`), except
    messages."""
    action = item.get("action")
    made = item.get("source") == "agent" and bool(part_of(item, "tool_call_metadata"))
    return action in _RUNS or (made and isinstance(action, str) and action not in (*_SAYS, "system"))


def _key(item: Item) -> str:
    """Return the field of words in an event before the SDK."""
    return "thought" if _is_call(item) or not part_of(item, "args").get("content") else "content"


def _thinking(home: Item, thought: str | None) -> Item:
    """Return the fields of a reply's thought, of which this is left."""
    fields = {key: home[key] for key in _REASONING if key in home}
    if thought is None or fields.get("reasoning_content") == thought:
        return fields
    again: dict[str, Json] = {key: [] if isinstance(value, list) else None for key, value in fields.items()}
    return {**again, "reasoning_content": thought}


def _judged(text: str, own_id: str | None, *where: Item) -> ToolOutput:
    """Return an output that an exit code or flag calls failed."""
    for fields in where:
        code = fields.get("exit_code")
        if fields.get("timeout") is True:
            return ToolOutput(text, own_id, Verdict("timeout", "status", "Timeout"), typed=True)
        if type(code) is int and code >= 0:  # -1: it still runs
            return exit_output(text, own_id, code)
        if fields.get("is_error") is True:
            return ToolOutput(text, own_id, Verdict("error", "status"), typed=True)
    return ToolOutput(text, own_id)


def _without_reply(made: Item) -> dict[str, Json]:
    return {"tool_call_metadata": {**made, _REPLY: None}} if made.get(_REPLY) else {}


def _reasoning_in(made: Item) -> Item:
    """Return the reasoning before an action, in the reply that it was received in."""
    choices = objects(part_of(made, _REPLY).get("choices"))
    message = part_of(choices[0], "message") if choices else {}
    return {key: message[key] for key in _OF_REPLY if key in message}


FORMAT = OpenHands()
