"""Gemini's contents: in requests of its API and of Vertex AI, and in the events of a session of Google's ADK."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.transcripts.failures.rules import Verdict
from retcon.transcripts.reading.blockwise import Blockwise
from retcon.transcripts.reading.items import APART, as_text, text_of
from retcon.transcripts.reading.itemwise import (
    Item,
    ItemList,
    arguments_of,
    flagged,
    part_of,
    some_id,
    string,
)
from retcon.transcripts.reading.pieces import Call, PieceKind, ToolOutput
from retcon.transcripts.reading.roles import role_of, speaker_of
from retcon.transcripts.registry import register
from retcon.transcripts.types import Json

_FUNCTION, _CODE = ("functionCall", "function_call"), ("executableCode", "executable_code")
_RESPONSE = ("functionResponse", "function_response")
_RAN = ("codeExecutionResult", "code_execution_result")
_CALLS, _OUTPUTS = (*_FUNCTION, *_CODE), (*_RESPONSE, *_RAN)
"""Keys of a part, as the API and as the Python SDK write them."""
_SIGNATURES = ("thoughtSignature", "thought_signature")
_SYSTEMS = ("systemInstruction", "system_instruction")
_OUTCOMES = {
    "OUTCOME_OK": None, "OUTCOME_FAILED": Verdict("error", "status"),
    "OUTCOME_DEADLINE_EXCEEDED": Verdict("timeout", "status"),
}  # fmt: skip
_GIVEN = ("result", "output")
"""Where a function's response has what it gave, if that is no object itself."""
_CANDIDATES = "candidates"
_LOGPROBS = ("logprobsResult", "logprobs_result", "avgLogprobs", "avg_logprobs")
"""Of candidates and events."""


class Gemini(Blockwise):
    """A content has a role and parts; an event of ADK's, and a candidate of a response, has a content. The `outcome`
    of a program decides; a function's response speaks where it has an `error`. Thoughts are words, but for signed
    ones."""

    name = "gemini"
    aliases = ("adk", "vertex")
    needs = frozenset({"parts", "content"})
    in_lines = True
    marks = (
        "contents", "parts", "functionCall", "functionResponse", "executableCode", "codeExecutionResult", "model",
        "function_call", "function_response", "executable_code", "code_execution_result", "systemInstruction", "author",
    )  # fmt: skip

    def has_calls(self, items: Sequence[Item]) -> bool:
        return _is_one_history(items) and any(_has(part, _CALLS) for item in items for part in self.blocks(item))

    def is_plain(self, items: Sequence[Item]) -> bool:
        return _is_one_history(items) and any(
            _content(item).get("role") == "model" and self.blocks(item) for item in items
        )

    def find(self, record: Json) -> ItemList | None:
        """What a response answers stands in its request, if anywhere."""
        found = super().find(record)
        if found is None or not isinstance(record, dict):
            return found
        request = part_of(record, "request") or record
        system = _system(request) or _system(part_of(request, "config"))
        contents = request.get("contents") if _CANDIDATES in found.path else None
        told = [one for one in contents if isinstance(one, dict)] if isinstance(contents, list) else []
        asked = [(speaker_of(one), text_of(one.get("parts"))) for one in told]
        context = "\n\n".join(text for _, text in asked) or found.context
        return found._replace(context=context, asked=asked, system=system)

    def blocks(self, item: Item) -> Sequence[Json]:
        found = _content(item).get("parts")
        return found if isinstance(found, list) else []

    def with_blocks(self, item: Item, blocks: Sequence[Json]) -> dict[str, Json]:
        new = {**_content(item), "parts": list(blocks)}
        return new if "parts" in item else {**item, "content": new}

    def forgotten(self, item: Json) -> Json:
        """Log-probs that were sampled after what is gone."""
        if not isinstance(item, dict) or not any(item.get(key) for key in _LOGPROBS):
            return item
        return {**item, **{key: None for key in _LOGPROBS if key in item}}

    def kind(self, block: Json, item: Item) -> PieceKind:
        if _has(block, _CALLS):
            return "call"
        if _has(block, _OUTPUTS):
            return "output"
        return "said" if _content(item).get("role") == "model" else "told"

    def role(self, block: Json, item: Item) -> str:
        return role_of(_content(item))

    def call(self, block: Item) -> Call:
        ran, called = _inside(block, _CODE), _inside(block, _FUNCTION)
        if ran:
            return Call("code_execution", {"code": string(ran.get("code"))}, id=some_id(ran.get("id")))
        return Call(
            string(called.get("name"), "python"), arguments_of(called.get("args")), id=some_id(called.get("id"))
        )

    def output(self, block: Item, item: Item) -> ToolOutput:
        ran, answer = _inside(block, _RAN), _inside(block, _RESPONSE)
        if not ran:
            return _given(part_of(answer, "response"), some_id(answer.get("id")))
        outcome, text, own_id = string(ran.get("outcome")), string(ran.get("output")), some_id(ran.get("id"))
        return ToolOutput(text, own_id, _OUTCOMES.get(outcome), typed=outcome in _OUTCOMES)

    def words(self, block: Json) -> str:
        part = block if isinstance(block, dict) else {}
        text = string(part.get("text"))
        if not part.get("thought"):
            return text
        return text + APART if text and not _has(block, _SIGNATURES) else ""

    def with_words(self, block: Json, words: str) -> Json:
        """What was signed with other words is so no more."""
        part = block if isinstance(block, dict) else {}
        text = words.removesuffix(APART) if part.get("thought") else words
        return {**{key: "" if key in _SIGNATURES and value else value for key, value in part.items()}, "text": text}


def _content(item: Item) -> Item:
    return item if "parts" in item else part_of(item, "content")


def _is_one_history(items: Sequence[Item]) -> bool:
    """Whether what the items hold came one after another: of several candidates, which are no events, each is another
    answer."""
    return len(items) == 1 or all("parts" in item or "author" in item for item in items)


def _has(part: Json, keys: Sequence[str]) -> bool:
    return isinstance(part, dict) and any(part.get(key) for key in keys)


def _inside(part: Item, keys: Sequence[str]) -> Item:
    return next(filter(None, (part_of(part, key) for key in keys)), {})


def _system(request: Item) -> str:
    value = next((request[key] for key in _SYSTEMS if request.get(key)), None)
    return text_of(value["parts"] if isinstance(value, dict) and "parts" in value else value)


def _given(response: Item, own_id: str | None) -> ToolOutput:
    """What a function's response says: an error, a result, or what a server of MCP says of it."""
    error = response.get("error")
    if error and isinstance(error, str | dict):
        return flagged(text_of(error), own_id, failed=True)
    for key in _GIVEN:
        if response.keys() - {"error"} == {key}:
            inner = part_of(response, key)
            return _given(inner, own_id) if "isError" in inner else ToolOutput(as_text(response[key]), own_id)
    if "isError" in response:
        return flagged(text_of(response.get("content")), own_id, failed=response["isError"] is True)
    return ToolOutput(as_text(response) if response else "", own_id)


register(Gemini())
