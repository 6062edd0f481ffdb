"""Memory of smolagents: an agent's steps, full or succinct, or a result."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from types import MappingProxyType

from retcon.transcripts.items import role_of, text_of
from retcon.transcripts.itemwise import Item, ItemList, Steps, arguments_of, objects, part_of, some_id, string
from retcon.transcripts.pieces import Call, ToolOutput
from retcon.transcripts.types import Json, json_in
from retcon.transcripts.verdicts import Verdict

_PROMPTS = ("task", "plan", "system_prompt")
_CODE = re.compile(r"<code>|```(?:py|python)?[ \t]*\r?\n|Code:\s*```")
_THOUGHTS = ("thought", "thoughts")
_CAUSE = re.compile(r"due to: (?P<type>[A-Za-z_]\w*(?:Error|Exception|Interrupt|Warning|Iteration))\b")


class Smolagents(Steps):
    """Steps of a smolagents agent.

    A step has `model_output` (words and program; with structured outputs JSON, a `thought` and its `code`),
    `tool_calls`, `observations` and `error`, which is typed. The messages that each step was given are emptied
    after a repair: they repeat the failure."""

    name = "smolagents"
    needs = frozenset({"step_number"})
    stale = MappingProxyType({("model_input_messages",): None})
    marks = ("step_number", "model_output", "code_action", "observations", "action_output", "tool_calls", "steps")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any("step_number" in i and (i.get("tool_calls") or i.get("code_action")) for i in items)

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any("step_number" in item and "model_output" in item for item in items)

    def find(self, record: Json) -> ItemList | None:
        """Find the steps, and the system prompt in the first one's messages."""
        found = super().find(record)
        if found is None or any(item.get("system_prompt") for item in found.items):
            return found
        first = next(
            (item.get("model_input_messages") for item in found.items if item.get("step_number") is not None), None
        )
        return found._replace(
            system=next((text_of(m.get("content")) for m in objects(first) if role_of(m) == "system"), "")
        )

    def speaker(self, item: Item) -> str:
        return role_of(item) if item.get("step_number") is None else "assistant"

    def words(self, item: Item) -> str:
        """Return the words before the program; else the task, the system's prompt, a plan."""
        if item.get("step_number") is None:
            return next(filter(None, (string(item.get(key)) for key in _PROMPTS)), "")
        text = text_of(item.get("model_output"))
        if (structured := _structured(text)) is not None:
            return string(structured.get(_thought_key(structured)))
        begins = _CODE.search(text)
        return text[: begins.start()] if begins else text

    def with_words(self, item: dict[str, Json], words: str) -> dict[str, Json]:
        text, own = text_of(item.get("model_output")), self.words(item)
        if (structured := _structured(text)) is not None:
            key = _thought_key(structured)
            fields = structured | {key: words} if key in structured else {key: words} | structured
            new = json.dumps(fields, ensure_ascii=text.isascii())
        else:
            new = words + text[len(own) :]
        message = part_of(item, "model_output_message")
        again = {"model_output_message": {**message, "content": new}} if text_of(message.get("content")) == text else {}
        return {**item, "model_output": new, **again}

    def calls(self, item: Item) -> list[Call]:
        found = objects(item.get("tool_calls"))
        if not found and isinstance(code := item.get("code_action"), str):
            return [Call("python_interpreter", {"code": code})]
        return list(map(_call, found))

    def outputs(self, item: Item) -> list[ToolOutput]:
        """Return an output for each call: a step has only what they gave together."""
        error = item.get("error")
        message = string(error.get("message")) if isinstance(error, dict) else string(error)
        text = "\n".join(filter(None, (text_of(item.get("observations")), message)))
        verdict = None
        if error:
            cause = _CAUSE.findall(message)
            kind = string(error.get("type")) if isinstance(error, dict) else ""
            verdict = Verdict("error", "status", cause[-1] if cause else kind or None)
        return [ToolOutput("" if n else text, call.id, verdict, typed=True) for n, call in enumerate(self.calls(item))]


def _structured(text: str) -> dict[str, Json] | None:
    """Read the model's structured output: an object with its `code`."""
    value = json_in(text) if text.lstrip().startswith("{") else None
    return value if isinstance(value, dict) and isinstance(value.get("code"), str) else None


def _thought_key(structured: Item) -> str:
    return next((key for key in _THOUGHTS if key in structured), _THOUGHTS[0])


def _call(one: Item) -> Call:
    function = part_of(one, "function") or one
    name, arguments = string(function.get("name"), "python_interpreter"), function.get("arguments")
    if name == "python_interpreter" and isinstance(arguments, str):
        arguments = {"code": arguments}
    return Call(name, arguments_of(arguments), id=some_id(one.get("id")))


FORMAT = Smolagents()
