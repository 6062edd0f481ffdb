"""Gemini's contents, Google ADK's events, and sessions of Gemini CLI."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import not_
from types import MappingProxyType

from msgspec.structs import replace

from retcon.core.types import Trajectory
from retcon.transcripts.items import APART, Thought, as_text, renew_record, role_of, speaker_of, text_of
from retcon.transcripts.itemwise import (
    Blockwise,
    Item,
    ItemList,
    Steps,
    flagged_output,
    lists,
    objects,
    part_of,
    read_call,
    some_id,
    string,
)
from retcon.transcripts.pieces import Call, PieceKind, ToolOutput
from retcon.transcripts.types import Json, Reading
from retcon.transcripts.verdicts import UNCLEAR, Verdict

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
_LOGPROBS = ("logprobsResult", "logprobs_result", "avgLogprobs", "avg_logprobs")
_CONTENTS, _CANDIDATES = "contents", "candidates"


class Gemini(Blockwise):
    """Contents of Gemini's API, Vertex AI and ADK.

    A content has a role and parts; ADK's events and a response's candidates have a content. A history and the one
    candidate that answers it are one transcript; of several candidates, each is one, and no calls of a history
    before them are repaired. The `outcome` of a program decides; a function's response where it has an `error`.
    Thoughts count as words unless they are signed."""

    name = "gemini"
    aliases = ("adk", "vertex")
    needs = frozenset({"parts", "content"})
    stale = MappingProxyType(dict.fromkeys([(key,) for key in _LOGPROBS]))
    in_lines = True
    marks = (
        "contents", "parts", "functionCall", "functionResponse", "executableCode", "codeExecutionResult", "model",
        "function_call", "function_response", "executable_code", "code_execution_result", "systemInstruction", "author",
    )  # fmt: skip

    def has_calls(self, items: Sequence[Item]) -> bool:
        return _is_known(items) and any(_has(part, _CALLS) for item in items for part in self.blocks(item))

    def is_plain(self, items: Sequence[Item]) -> bool:
        return _is_known(items) and any(_content(item).get("role") == "model" and self.blocks(item) for item in items)

    def find(self, record: Json) -> ItemList | None:
        """Find the contents; those that a response answers stand in its request."""
        found = super().find(record)
        if found is None or not isinstance(record, dict):
            return found
        request = part_of(record, "request") or record
        system = _system(request) or _system(part_of(request, "config"))
        history, answer = (_under(record, key) for key in (_CONTENTS, _CANDIDATES))
        read = history is not None and (history.path == found.path or self.has_calls(history.items))
        if history is not None and read and answer is not None and len(answer.items) == 1:
            return history._replace(items=[*history.items, *answer.items], context=found.context, system=system)
        contents = objects(request.get(_CONTENTS)) if _CANDIDATES in found.path else []
        asked = [(speaker_of(one), text_of(one.get("parts"))) for one in contents]
        context = "\n\n".join(text for _, text in asked) or found.context
        return found._replace(context=context, asked=asked, system=system)

    def read(self, record: Json, id: str) -> Reading:
        """Read the transcripts of a record.

        A repair in a history before several candidates would have to fit each of them, and they are not read with
        it: none of its calls counts as a fix."""
        reading = super().read(record, id)
        found, answers = self.find(record), _under(record, _CANDIDATES)
        if found is not None and answers is not None and len(answers.items) > 1 and found.path[-1:] == (_CONTENTS,):
            reading.trajectories = [_unclear(one) for one in reading.trajectories]
        return reading

    def find_all(self, record: Json) -> Sequence[ItemList]:
        found = self.find(record)
        if found is None or not _are_answers(found.items):
            return super().find_all(record)
        return [found._replace(path=(*found.path, n), items=[one]) for n, one in enumerate(found.items)]

    def with_items(self, record: Json, place: ItemList, items: list[Json]) -> Json:
        """Put an answer back beside its history or among others."""
        if place.path and isinstance(place.path[-1], int):
            return renew_record(record, place.path, items[0])
        answer = _under(record, _CANDIDATES)
        if answer is None or place.items[-1] is not answer.items[0] or len(place.items) == 1:
            return super().with_items(record, place, items)
        is_content = [item.get("parts") is not None for item in items if isinstance(item, dict)]
        new = super().with_items(record, place, [*compress(items, is_content)])
        return super().with_items(new, answer, [*compress(items, map(not_, is_content))])

    def blocks(self, item: Item) -> Sequence[Json]:
        found = _content(item).get("parts")
        return found if isinstance(found, list) else []

    def with_blocks(self, item: Item, blocks: Sequence[Json]) -> dict[str, Json]:
        new = {**_content(item), "parts": list(blocks)}
        return new if item.get("parts") is not None else {**item, "content": new}

    def kind(self, block: Json, item: Item) -> PieceKind:
        if _has(block, _CALLS):
            return "call"
        if _has(block, _OUTPUTS):
            return "result"
        return "assistant" if _content(item).get("role") == "model" else "context"

    def role(self, block: Json, item: Item) -> str:
        return role_of(_content(item))

    def call(self, block: Item) -> Call:
        if ran := _inside(block, _CODE):
            return Call("code_execution", {"code": string(ran.get("code"))}, id=some_id(ran.get("id")))
        return read_call(_inside(block, _FUNCTION), "name", "args", "id")

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
        return Thought(text + APART if text and not _has(block, _SIGNATURES) else "")

    def with_words(self, block: Json, words: str) -> Json:
        """Replace words, and drop a signature of other words."""
        part = block if isinstance(block, dict) else {}
        text = words.removesuffix(APART) if part.get("thought") else words
        return {**{key: "" if key in _SIGNATURES and value else value for key, value in part.items()}, "text": text}


def _content(item: Item) -> Item:
    return item if item.get("parts") is not None else part_of(item, "content")


def _under(record: Json, name: str) -> ItemList | None:
    """Return a record's list by name, or one in its objects."""
    return next((ItemList(path, items) for path, items in lists(record) if path[-1:] == (name,)), None)


def _is_known(items: Sequence[Item]) -> bool:
    """Whether it is known if items are a sequence or alternatives."""
    return len(items) == 1 or all("parts" in item or "author" in item for item in items) or _are_answers(items)


def _are_answers(items: Sequence[Item]) -> bool:
    """Whether the items are several candidates, which are no events."""
    contents = [part_of(item, "content") for item in items if "parts" not in item and "author" not in item]
    return len(items) > 1 and len(contents) == len(items) and all(c.get("role", "model") == "model" for c in contents)


def _unclear(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory with its successes marked as unclear."""
    seen = [[replace(o, rule=o.rule or _CANDIDATES) for o in turn.observations] for turn in trajectory.turns]
    turns = [replace(turn, observations=tuple(own)) for turn, own in zip(trajectory.turns, seen, strict=True)]
    return replace(trajectory, turns=tuple(turns))


def _has(part: Json, keys: Sequence[str]) -> bool:
    return isinstance(part, dict) and any(part.get(key) for key in keys)


def _inside(part: Item, keys: Sequence[str]) -> Item:
    return next(filter(None, (part_of(part, key) for key in keys)), {})


def _system(request: Item) -> str:
    value = next((request[key] for key in _SYSTEMS if request.get(key)), None)
    return text_of(value["parts"] if isinstance(value, dict) and "parts" in value else value)


def _given(response: Item, own_id: str | None) -> ToolOutput:
    """Return a function's response: an error, a result, or a server's of MCP."""
    error = response.get("error")
    if error and isinstance(error, str | dict):
        return flagged_output(text_of(error), own_id, failed=True)
    for key in _GIVEN:
        if response.keys() - {"error"} == {key}:
            inner = part_of(response, key)
            return _given(inner, own_id) if "isError" in inner else ToolOutput(as_text(response[key]), own_id)
    if "isError" in response:
        return flagged_output(text_of(response.get("content")), own_id, failed=bool(response["isError"]))
    return ToolOutput(as_text(response) if response else "", own_id)


GEMINI = Gemini()


_TOOL_CALLS, _THOUGHTS, _ANSWER = "toolCalls", "thoughts", "functionResponse"
_REWOUND, _SET = "$rewindTo", "$set"


class GeminiCli(Steps):
    """Messages of a Gemini CLI session.

    A message of `gemini` has its calls in `toolCalls`, each with its `result` and `status` (which counts where it
    is "error"; "success" is set whatever a program did); the user's message after it may repeat the results. Of
    lines with one `id` the last counts; those that a `$rewindTo` took back are context of no one."""

    name = "gemini-cli"
    needs = frozenset({"type"})
    in_lines = True
    marks = ("sessionId", "projectHash", "gemini", _TOOL_CALLS, _THOUGHTS, "resultDisplay", _REWOUND)

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(item.get("type") == "gemini" and self.calls(item) for item in items)

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any(item.get("type") == "gemini" and "content" in item for item in items)

    def find(self, record: Json) -> ItemList | None:
        found = super().find(record)
        return found._replace(items=_last_of_each(found.items)) if found else None

    def speaker(self, item: Item) -> str | None:
        content = item.get("content")
        repeats = isinstance(content, list) and any(part_of(part, _ANSWER) for part in content)
        if item.get("type") == "gemini":
            return "assistant"
        return "user" if item.get("type") == "user" and not repeats else None

    def speakers(self, items: Sequence[Item]) -> Sequence[str | None]:
        speakers = [self.speaker(item) for item in items]
        for n, item in enumerate(items):
            if _REWOUND in item:
                start = next((at for at in range(n) if items[at].get("id") == item[_REWOUND]), 0)
                speakers[start:n] = [None] * (n - start)
        return speakers

    def thought(self, item: Item) -> str:
        thoughts = [
            (string(one.get("subject")), string(one.get("description"))) for one in objects(item.get(_THOUGHTS))
        ]
        return "\n\n".join(map("\n".join, thoughts))

    def with_thought(self, item: dict[str, Json], thought: str | None, home: Item) -> dict[str, Json]:
        if thought is None:
            return {**item, _THOUGHTS: []} if item.get(_THOUGHTS) else item
        same = self.thought(home) == thought
        return {**item, _THOUGHTS: home[_THOUGHTS] if same else [{"subject": "", "description": thought}]}

    def calls(self, item: Item) -> list[Call]:
        return [read_call(one, "name", "args", "id") for one in objects(item.get(_TOOL_CALLS))]

    def outputs(self, item: Item) -> list[ToolOutput]:
        return [
            _output(one)
            for one in objects(item.get(_TOOL_CALLS))
            if one.get("result") or one.get("status") != "executing"
        ]

    def update_references(self, items: Sequence[Json], before: Sequence[Item]) -> Sequence[Json]:
        """Empty the copy of all messages in an update: the lines are what is left."""
        return [
            {**item, _SET: {**part_of(item, _SET), "messages": []}}
            if isinstance(item, dict) and part_of(item, _SET).get("messages")
            else item
            for item in items
        ]


def _output(call: Item) -> ToolOutput:
    own_id, status, result = some_id(call.get("id")), call.get("status"), call.get("result")
    parts = result if isinstance(result, list) else [result]
    answers = [part_of(part_of(part, _ANSWER), "response") for part in parts]
    given = [as_text(one.get("output", one.get("error", one or None))) for one in answers]
    text = "".join(given) + text_of(result) or string(call.get("resultDisplay"))
    if status == "cancelled":
        return ToolOutput(text, own_id, Verdict("ok", UNCLEAR), typed=True)
    return flagged_output(text, own_id, failed=status == "error" or any(one.get("error") for one in answers) or None)


def _last_of_each(items: Sequence[Item]) -> list[Item]:
    """Keep the last version of each message, in the first one's place."""
    last = {own: item for item in items if isinstance(own := item.get("id"), str)}
    once = dict.fromkeys(last, True)
    return [
        last[own] if isinstance(own, str) else item
        for item in items
        if not isinstance(own := item.get("id"), str) or once.pop(own, False)
    ]


GEMINI_CLI = GeminiCli()
